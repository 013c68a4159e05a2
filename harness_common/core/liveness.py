"""Who is dead, and what a loss means: the reaper's decisions, without its I/O.

Death is judged by liveness, never by a step's age. Times of `Watch` are Postgres time, those of
`Absence` a monotonic clock's seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from harness_common.core.inputs import OwnerLost, Released

SAMPLE_APART_S: Final = 1.0
"""How far apart two samples of the connections must be to tell an absence."""


def heartbeat_timeout_s(timeout_s: float, lease_s: float) -> float:
    """Return how long a heartbeat may hang: one lost reply must leave time for the next heartbeat.

    With renewals every third of a lease, half a lease does; a whole statement timeout (10 s of a
    lease of 15 s) got a living worker condemned for one lost packet.
    """
    return min(timeout_s, lease_s / 2)


@dataclass(slots=True)
class Watch:
    """Since when a scheduler has seen Postgres without a gap."""

    lease_s: float
    last: datetime | None = None
    since: datetime | None = None

    def look(self, now: datetime) -> None:
        """Note that Postgres was seen; after a gap the watch starts anew.

        While Postgres was away (or this machine slept) nobody could send a heartbeat, so silence
        says nothing until a whole lease has been watched. Nor does it when the clock of Postgres
        was set back: by the old beginning, nobody would be dead until it is caught up with.
        """
        longest = timedelta(seconds=self.lease_s / 2)
        if self.last is None or not timedelta(0) <= now - self.last <= longest:
            self.since = now
        self.last = now

    def silence_counts(self, now: datetime) -> bool:
        """Tell whether a worker that was silent for a lease may be taken for dead."""
        return self.since is not None and now - self.since >= timedelta(seconds=self.lease_s)


@dataclass(slots=True)
class Absence:
    """Which worker processes have lost their Redis connection, and since when."""

    since: dict[UUID, float] = field(default_factory=dict)
    seen: Set[UUID] = frozenset()

    def absent(
        self, now_s: float, connected: Set[UUID], silent_s: Mapping[UUID, float]
    ) -> list[UUID]:
        """Take a sample; return the workers that are gone.

        `silent_s` names the workers not known to be dead, and how long ago each sent a heartbeat.
        """
        self.seen = (self.seen | connected) & silent_s.keys()
        gone = []
        for worker, silent in silent_s.items():
            # Never by this path when nobody else is connected: then Redis, or the way to it, is the
            # likelier fault. Nor for a process that was never seen connected: it may just start.
            others = connected & (silent_s.keys() - {worker})
            if worker in connected or worker not in self.seen or not others:
                self.since.pop(worker, None)
                continue
            first = self.since.setdefault(worker, now_s)
            if now_s - first >= SAMPLE_APART_S and silent > SAMPLE_APART_S:
                gone.append(worker)
        return gone


def loss(
    claimed_by: UUID | None,
    name: str | None,
    why: str | None,
    *,
    solo: bool = False,
    late: bool = False,
) -> OwnerLost | Released:
    """Name what happened to a claim's owner. Without a row nobody saw it die: that is no death. Nor
    is a claim that it took after it had been taken for dead (`late`), wrongly then: one cut must
    not count as two deaths.
    """
    if name is None:
        return Released(f"its worker {claimed_by} is not known")
    if late:
        return Released(f"its worker {name} had been taken for dead")
    return OwnerLost(name, why or "died", solo)
