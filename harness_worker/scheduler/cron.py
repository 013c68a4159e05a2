"""Schedules: a time that has come becomes a run, once; what waits for an earlier run starts after
it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Final
from uuid import UUID

import psycopg
import structlog

from harness_common.core.errors import HarnessError, TermOver
from harness_common.core.ids import encode
from harness_common.core.schedule import Outcome
from harness_common.firing import Fired, fire_due
from harness_common.store.connection import DatabaseUnavailable, Row, RowsHeld
from harness_common.telemetry.causes import causing
from harness_worker.scheduler.looper import HELD_S, REDIS_PATIENCE_S, Look, PassedBy, Shared

log = structlog.get_logger()

BUDGET_S: Final = 1.0
"""How long one tick fires: the leadership must be renewed, and other duties wait."""
_AGAIN_S: Final = 60.0


class CronLoop:
    """Fires schedules."""

    name = "cron"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._channel = shared.signals()
        self._later: dict[UUID, float] = {}
        """Schedules that could not be decided about, and until when they are put off."""
        self._passed_by = PassedBy()

    async def run_once(self, look: Look) -> int:
        """Fire what is due, as far as the time of a tick goes."""
        if look.fire_in_s is None or look.fire_in_s > 0:
            return 0
        shared, until = self._shared, time.monotonic() + BUDGET_S
        now = time.monotonic()
        self._later = {one: at for one, at in self._later.items() if at > now}
        params = {"batch": shared.settings.scheduler.batch, "later": list(self._later)}
        rows = await shared.db.fetch("schedules_due", params)
        # In rounds: one that has much to make good must not keep the others from their times.
        left, done = deque(rows), 0
        while left and time.monotonic() <= until:
            row = left.popleft()
            if self._passed_by.has(row["tenant_id"]):
                continue
            fired = await self._fire(row)
            if fired is not None:
                done += 1
                left.extend([row] if fired.more else [])
        return done

    async def _fire(self, row: Row) -> Fired | None:
        """Decide about the next of one schedule that is due; None when nothing is."""
        shared = self._shared
        try:
            with causing("fire schedule", {"harness.schedule": encode("schedule", row["id"])}):
                fired = await fire_due(
                    shared.db, row["tenant_id"], row["id"], shared.check_term, HELD_S
                )
            if fired is not None:
                await self._announce(row, fired)
            return fired
        except RowsHeld:
            log.warning("schedule.held_up", schedule=encode("schedule", row["id"]))
            self._passed_by.note(row["tenant_id"])
            return None
        except (DatabaseUnavailable, TermOver):
            raise
        except (HarnessError, psycopg.Error, KeyError, TypeError, ValueError) as error:
            # A schedule that cannot be decided about must not hold up its neighbours.
            log.error(
                "schedule.deferred", schedule=encode("schedule", row["id"]), error=repr(error)
            )
            shared.count("schedules_deferred")
            self._later[row["id"]] = time.monotonic() + _AGAIN_S
            key = {"tenant_id": row["tenant_id"], "id": row["id"]}
            await shared.db.fetch(
                "schedule_defer", key | {"again_s": _AGAIN_S, "term": shared.term}
            )
            return None

    async def _announce(self, row: Row, fired: Fired) -> None:
        """Ring for the run, and tell the workers of those it replaces. A lost signal costs time."""
        shared = self._shared
        shared.count(f"schedules_{fired.outcome}")
        if fired.outcome in {Outcome.FAILED, Outcome.MISSED}:
            log.warning(
                "schedule.not_fired",
                outcome=fired.outcome,
                schedule=encode("schedule", row["id"]),
                at=fired.at.isoformat(),
                reason=fired.reason,
            )
        if fired.run is not None and fired.run.doorbell is not None:
            shared.bell.ring(fired.run.doorbell)
        for run_id, worker in fired.stopped:
            if worker is not None and self._channel is not None:
                try:
                    async with asyncio.timeout(REDIS_PATIENCE_S):
                        await self._channel.cancel(worker, run_id)
                except TimeoutError:
                    log.info("cancel.not_signalled", run_id=encode("run", run_id))
