"""The tiny protocol of the scheduler's loops, and what they share.

A loop is a class with `run_once`; it keeps no timer and does not sleep. The process in `__main__`
looks once per tick and calls the loops that have something to do. Every write compares the leader's
term.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from redis.asyncio import Redis

from harness_common.broker.publish import Bell, Doorbell
from harness_common.coord.lease import Leases
from harness_common.core.errors import Conflict
from harness_common.settings import Settings
from harness_common.store.apply import Applied
from harness_common.store.db import Connection, Database, run_sql


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the database said."""

    now: datetime
    due_in_s: float | None
    queued: bool
    stale: bool
    orphaned: bool
    ungranted: bool
    queue_age_s: float


@dataclass(slots=True)
class Shared:
    """What every loop is given."""

    settings: Settings
    db: Database
    redis: Redis
    leases: Leases
    bell: Bell
    term: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter that metrics show."""
        self.counts[name] = self.counts.get(name, 0) + n

    def ring(self, applied: Applied, ring: int = 1) -> None:
        """Ring for a run that a commit made ready."""
        run = applied.run
        if applied.should_ring:
            self.bell.ring(
                Doorbell(
                    run.tenant_id, run.id, run.version, run.queue, run.priority, ring, run.trace_id
                )
            )

    async def check_term(self, conn: Connection) -> None:
        """Hold the term for this transaction; raises `Conflict` when another scheduler leads
        (INV12).
        """
        if not await run_sql(conn, "lead_check", {"term": self.term}, self.db.timeout_s):
            raise Conflict("another scheduler leads now", code="TERM_OVER", term=self.term)


class Loop(Protocol):
    """One duty of the scheduler."""

    name: str

    async def run_once(self, look: Look) -> int:
        """Do what is due by `look`; return how much was done."""
        ...
