"""Ringing again: a doorbell that nobody answered in time is rung once more, with backoff.

When the broker has lost its queues (a restarted or flushed Redis, a RabbitMQ that was away),
everything unanswered is rung at once. While it cannot be reached nothing is rung, so that the
backoff is not used up for nothing. Duplicates are harmless.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from uuid import UUID

import structlog

from harness_common.broker.publish import Doorbell
from harness_common.broker.queues import is_amqp
from harness_common.coord.redis import RedisFault
from harness_common.core.lease import quarantine_of
from harness_common.core.rules import SUSPECT_DEATHS
from harness_common.store.connection import Row
from harness_worker.scheduler.looper import REDIS_PATIENCE_S, Look, Shared

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 0.5


class DispatchLoop:
    """Rings for runs that are ready and unclaimed."""

    name = "dispatch"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._marker = f"{shared.settings.redis.prefix}:marker"
        self._looked_at = 0.0
        self._reachable = True
        self._bell_works = True
        self._renewed: int | None = None
        amqp = is_amqp(shared.settings.broker_url or "")
        self._broker = None if amqp else shared.broker or shared.redis

    async def run_once(self, look: Look) -> int:
        """Ring for every overdue doorbell, up to a batch."""
        forgot = await self._broker_forgot()
        if not self._reachable:
            return 0
        shared, config = self._shared, self._shared.settings.scheduler
        # RabbitMQ may be away while Redis is there: one doorbell tries it. One that was away for a
        # moment may be another, that knows nothing.
        worked, self._bell_works = self._bell_works, shared.bell.works
        renewed, self._renewed = self._renewed, shared.bell.renewed
        anew = not worked or renewed not in {None, self._renewed}
        if forgot or (self._bell_works and anew):
            due = await shared.db.fetch("ring_all", {"term": shared.term})
            log.info("broker.forgot", unanswered=len(due))
        elif look.due_in_s is None or look.due_in_s > 0:
            return 0
        rows = await shared.db.fetch(
            "ring",
            {
                "term": shared.term,
                "batch": config.batch if self._bell_works else 1,
                "first_s": max(config.ring_after_s, 3 * look.queue_age_s),
                "longest_s": max(config.ring_after_max_s, 3 * look.queue_age_s),
            },
        )
        await self._break_dead_leases([row["id"] for row in rows])
        for row in rows:
            shared.bell.ring(
                Doorbell(
                    row["tenant_id"], row["id"], row["version"], _queue(row), row["priority"],
                    row["rings"], row["trace_id"], row["step"] + 1,
                )
            )  # fmt: skip
        shared.count("doorbells_rung_again", len(rows))
        return len(rows)

    async def _break_dead_leases(self, run_ids: list[UUID]) -> None:
        """Delete the leases that dead processes hold on runs that nobody owns: one may die between
        its lease and its claim, or between its commit and its release, and whoever answers the
        doorbell would be turned away.
        """
        shared = self._shared
        try:
            async with asyncio.timeout(REDIS_PATIENCE_S):
                holders = await shared.leases.holders(run_ids)
        except RedisFault:
            return
        if not holders:
            return
        alive = {row["incarnation"] for row in await shared.db.fetch("workers_alive", {})}
        await shared.break_leases([one for one in holders.items() if one[1] not in alive])

    async def _broker_forgot(self) -> bool:
        """Tell whether the Redis that holds the queues lost our marker: then it lost those too."""
        redis = self._broker
        if redis is None or time.monotonic() - self._looked_at < _LOOK_EVERY_S:
            return False
        self._looked_at = time.monotonic()
        try:
            async with asyncio.timeout(REDIS_PATIENCE_S):
                term = str(self._shared.term)
                missing = await redis.set(self._marker, term, nx=True)
        except RedisFault:
            self._reachable = False
            return False
        back, self._reachable = not self._reachable, True
        return bool(missing) or back


def _queue(row: Row) -> str:
    queue: str = row["queue"]
    return quarantine_of(queue) if row["deaths"] >= SUSPECT_DEATHS else queue
