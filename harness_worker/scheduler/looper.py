"""The tiny protocol of the scheduler's loops, and what they share.

A loop is a class with `run_once`; it keeps no timer and does not sleep. The process in `__main__`
looks once per tick and calls the loops that have something to do. Every write compares the leader's
term.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol
from uuid import UUID

import structlog
from redis.asyncio import Redis

from harness_common.broker.publish import Doorbell, Rings, urgency
from harness_common.coord.channel import Channel
from harness_common.coord.lease import Leases
from harness_common.coord.redis import RedisFault
from harness_common.core.errors import HarnessError, TermOver
from harness_common.core.ids import encode
from harness_common.core.inputs import Input
from harness_common.core.rules import advance
from harness_common.core.run import Status
from harness_common.settings import Settings
from harness_common.store.connection import Connection, Row, run_sql, run_together
from harness_common.store.db import Database
from harness_common.store.rows import run_from_row
from harness_common.store.writes import Applied, Write
from harness_worker.scheduler import metrics

log = structlog.get_logger()

REDIS_PATIENCE_S: Final = 0.5
"""How long a tick waits for Redis: what it says is only ever a shortcut."""
HELD_S: Final = 1.0
"""How long a transaction of a loop waits for a row: a process that froze with the rows of one
tenant must not hold up those of the others.
"""
PASS_BY_S: Final = 2 * HELD_S
"""How long a tenant whose rows are held is passed by before it is waited for again."""
_SKIP_S: Final = 30.0
"""How long a run that could not be read or moved is left alone."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the database said."""

    now: datetime
    due_in_s: float | None
    queued: bool
    """A run waits for admission."""
    keyed: bool
    """A run is held back by its concurrency key."""
    behind: bool
    """A run is held back by the run before it in its session."""
    stale: bool
    orphaned: bool
    ungranted: int
    """Tenants without a block of the global limit."""
    capacity: int
    """What live workers can hold."""
    granted: int
    """Slots of the global limit that tenants hold as blocks."""
    all_running: int | None
    """The platform's limit on running runs, when it is not the setting."""
    forsaken: bool
    """A child run goes on although its parent was asked to stop or has ended."""
    queue_age_s: float
    fire_in_s: float | None
    """Until the next firing of a schedule; None when there is none."""
    deliver_in_s: float | None
    """Until the next delivery to a webhook; None when there is none."""


@dataclass(slots=True)
class Shared:
    """What every loop is given."""

    settings: Settings
    db: Database
    redis: Redis | None
    """None in a process that is alone: there is no connection to miss and no broker to forget."""
    leases: Leases
    bell: Rings
    term: int = 0
    channel: Channel | None = None
    """How workers are told; None: over `redis`."""
    broker: Redis | None = None
    """The Redis that holds the queues, when that is not `redis`."""
    counts: dict[str, int] = field(default_factory=dict)
    again_in_s: float | None = None
    """How soon some loop wants the next tick."""
    _skipped: set[UUID] = field(default_factory=set)
    _skipped_until: float = 0.0

    def signals(self) -> Channel | None:
        """Return the channel by which worker processes are told; None where there is none."""
        if self.channel is None and self.redis is not None:
            self.channel = Channel(self.redis, self.settings.redis.prefix)
        return self.channel

    def ask_again(self, in_s: float) -> None:
        """Ask for the next tick in `in_s` at the latest."""
        self.again_in_s = in_s if self.again_in_s is None else min(self.again_in_s, in_s)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter that metrics show."""
        self.counts[name] = self.counts.get(name, 0) + n
        metrics.actions_done.labels(metrics.actions(name)).inc(n)

    def ring(self, applied: Applied, ring: int = 1, *, newcomer: bool = False) -> None:
        """Ring for a run that a commit made ready; `newcomer`: its tenant ran nothing else."""
        run = applied.run
        if applied.should_ring:
            self.bell.ring(
                Doorbell(
                    run.tenant_id,
                    run.id,
                    run.version,
                    run.bell_queue,
                    urgency(run.priority, newcomer=newcomer),
                    ring,
                    run.trace_id,
                    run.state.step + 1,
                )
            )

    def writes(
        self, rows: Sequence[Row], inputs: Callable[[Row, int], Sequence[Input]], now: datetime
    ) -> list[Write]:
        """Advance each row by `inputs(row, how many were admitted before it)`;
        log and skip one that cannot be.

        A run that this version cannot read must not hold up its neighbours (INV15).
        """
        out: list[Write] = []
        admitted = 0
        for row in rows:
            try:
                run = run_from_row(row)
                write = Write(run, advance(run.state, inputs(row, admitted), now), now)
                admitted += write.transition.state.status is Status.RUNNING
                out.append(write)
            except (HarnessError, KeyError, TypeError, ValueError) as error:
                log.error("run.skipped", run_id=encode("run", row["id"]), error=repr(error))
                self.skip(row["id"])
        return out

    def skip(self, run_id: UUID) -> None:
        """Leave a run alone for a while, so that it stands before nobody."""
        self.count("runs_skipped")
        if not self._skipped:
            self._skipped_until = time.monotonic() + _SKIP_S
        self._skipped.add(run_id)

    def skipped(self) -> list[UUID]:
        """Return the runs to leave alone now."""
        if time.monotonic() > self._skipped_until:
            self._skipped.clear()
        return list(self._skipped)

    async def led(self, conn: Connection, name: str, params: Mapping[str, Any]) -> list[Row]:
        """Run the SQL file `name` in this transaction while this term lasts, in one round trip;
        raises as `check_term` does.
        """
        statements = [("lead_check", {"term": self.term}), (name, params)]
        held, rows = await run_together(conn, statements, self.db.timeout_s)
        self._require_term(held)
        return rows

    async def check_term(self, conn: Connection) -> None:
        """Hold the term for this transaction; raises `TermOver` when another scheduler leads
        (INV12).
        """
        params = {"term": self.term}
        self._require_term(await run_sql(conn, "lead_check", params, self.db.timeout_s))

    async def break_leases(self, held: Sequence[tuple[UUID, UUID]]) -> None:
        """Delete the leases of dead worker processes: pairs of a run and whose lease it is. Best
        effort: one that stays passes by itself.
        """
        try:
            async with asyncio.timeout(REDIS_PATIENCE_S):
                await asyncio.gather(*(self.leases.break_lease(*one) for one in held))
        except RedisFault:
            log.info("lease.break_failed", count=len(held))

    def _require_term(self, held: Sequence[Row]) -> None:
        if not held:
            raise TermOver("another scheduler leads now", term=self.term)


class PassedBy:
    """Tenants whose rows somebody holds, and until when they are passed by."""

    def __init__(self) -> None:
        self._until: dict[UUID, float] = {}

    def note(self, tenant_id: UUID) -> None:
        """Pass a tenant by from now on, for a while."""
        self._until[tenant_id] = time.monotonic() + PASS_BY_S

    def has(self, tenant_id: UUID) -> bool:
        """Tell whether a tenant is passed by now."""
        if time.monotonic() < self._until.get(tenant_id, 0.0):
            return True
        self._until.pop(tenant_id, None)
        return False


class Loop(Protocol):
    """One duty of the scheduler."""

    name: str

    async def run_once(self, look: Look) -> int:
        """Do what is due by `look`; return how much was done."""
        ...
