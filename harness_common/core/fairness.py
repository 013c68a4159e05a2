"""Who gets the next slot: weighted fair between tenants, charged in slot-seconds (stride).

A tenant's *pass* is the slot-seconds that it has used since it began to compete, divided by its
weight; a free slot goes to the lowest pass. Slots that are held count at least as long as this
tenant's turns usually last, so that a tenant of long steps does not take everything before it is
charged. Called by the scheduler's admission. No clock: the caller gives the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil
from typing import Final
from uuid import UUID

FIRST_TURN_S: Final = 1.0
"""What a turn is taken to last until the first has ended."""
DEBT_S: Final = 10.0
"""A tenant that stops waiting for less than this comes back with what it owed."""
_HEADROOM: Final = 0.05
_HEADROOM_FROM: Final = 8
_SMOOTH: Final = 0.3


@dataclass(frozen=True, slots=True)
class Stream:
    """Waiting runs of a tenant that are alike for admission: their queue, and whether letting one
    in is a start (a resumed run was started before).
    """

    queue: str
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as admission sees it now."""

    id: UUID
    running: int = 0
    max_running: int = 1_000_000
    waiting: Mapping[Stream, int] = field(default_factory=dict)
    """In the order in which they should go."""
    weight: float = 1.0
    settled_s: float = 0.0
    """Slot-seconds of turns that have ended."""
    held_s: float = 0.0
    """Slot-seconds so far of the turns that go on."""
    starts: int | None = None
    """Runs that may be started now; None is any number."""
    turn_s: float = FIRST_TURN_S
    debit_s: float = 0.0

    @property
    def spent_s(self) -> float:
        """Slot-seconds used, and about to be used by the turns that go on."""
        return self.settled_s + max(self.held_s, self.running * self.turn_s)

    @property
    def pass_s(self) -> float:
        """How far this tenant is: the lowest comes first."""
        return (self.spent_s + self.debit_s) / self.weight


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to give: slots over all tenants, places per queue, starts."""

    slots: int
    """Running runs over all tenants, at most."""
    queues: Mapping[str, int]
    """How many more runs the workers of each queue can take; a queue without workers is missing."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """How many of those are for tenants that run nothing."""
    starts: int | None = None
    most: int = 1_000_000
    """Slots to give in this round."""
    idle: int = 0
    """Tenants that run nothing, those that do not wait included: a newcomer may be any of them."""


@dataclass(slots=True)
class _Left:
    """What is left while a round gives slots away."""

    slots: int
    queues: dict[str, int]
    kept: Mapping[str, int]
    starts: float
    idle: int
    headroom: int

    def has_slot(self, *, newcomer: bool) -> bool:
        """Tell whether there is a slot for a tenant that runs something, or nothing, already."""
        return self.slots > (0 if newcomer else min(self.headroom, max(0, self.idle)))

    def has_place(self, queue: str, *, newcomer: bool) -> bool:
        """Tell whether workers of a queue have a place for such a tenant."""
        kept = 0 if newcomer else min(self.kept.get(queue, 0), max(0, self.idle))
        return self.queues.get(queue, 0) > kept


def headroom(slots: int) -> int:
    """Count the slots that are kept for tenants that run nothing."""
    return max(1, ceil(_HEADROOM * slots)) if slots >= _HEADROOM_FROM else 0


def share(tenants: Sequence[Tenant], room: Room) -> dict[UUID, dict[Stream, int]]:
    """Give the free slots: each to the lowest pass that may have it, charged with a turn at once.

    Returns slots per tenant and stream, those of the least given first, so that a few runs of one
    tenant do not stand behind the many of another.
    """
    left = _Left(
        room.slots - sum(t.running for t in tenants), dict(room.queues), room.kept,
        float("inf") if room.starts is None else room.starts, room.idle, headroom(room.slots),
    )  # fmt: skip
    given: dict[UUID, dict[Stream, int]] = {}
    heap = [(t.pass_s, t.running, t.id, t) for t in tenants if _may_want(t)]
    heapify(heap)
    total = 0
    while heap and total < room.most:
        at, running, _, tenant = heappop(heap)
        mine = given.get(tenant.id, {})
        stream = _next_stream(tenant, mine, left)
        if stream is None or not left.has_slot(newcomer=running == 0):
            continue
        given.setdefault(tenant.id, mine)[stream] = mine.get(stream, 0) + 1
        _take(left, stream, newcomer=running == 0)
        total += 1
        if running + 1 < tenant.max_running:
            heappush(heap, (at + tenant.turn_s / tenant.weight, running + 1, tenant.id, tenant))
    return dict(sorted(given.items(), key=lambda one: sum(one[1].values())))


def _may_want(tenant: Tenant) -> bool:
    return tenant.running < tenant.max_running and any(tenant.waiting.values())


def _next_stream(tenant: Tenant, mine: Mapping[Stream, int], left: _Left) -> Stream | None:
    """Find the first stream that still has a waiting run, room in its queue and, for a start,
    leave.
    """
    started = sum(n for stream, n in mine.items() if not stream.resumed)
    starts = left.starts if tenant.starts is None else min(left.starts, tenant.starts - started)
    newcomer = tenant.running == 0 and not mine
    for stream, waiting in tenant.waiting.items():
        if (
            waiting > mine.get(stream, 0)
            and left.has_place(stream.queue, newcomer=newcomer)
            and (stream.resumed or starts > 0)
        ):
            return stream
    return None


def _take(left: _Left, stream: Stream, *, newcomer: bool) -> None:
    left.slots -= 1
    left.queues[stream.queue] -= 1
    left.idle -= newcomer
    if not stream.resumed:
        left.starts -= 1


def blocks(
    tenants: Sequence[Tenant], given: Mapping[UUID, int], likely: Iterable[UUID], room: Room
) -> dict[UUID, int]:
    """Divide the slots into blocks within which tenants start runs without asking.

    Everybody keeps what runs and what was just given; then those who wait for nothing and may
    start something soon share the rest, those who run nothing first, within the headroom.
    """
    out = {t.id: t.running + given.get(t.id, 0) for t in tenants}
    free = room.slots - sum(out.values())
    wanted = set(likely)
    some = [t for t in tenants if t.id in wanted and sum(t.waiting.values()) <= given.get(t.id, 0)]
    for tenant in some:
        if free > 0 and out[tenant.id] == 0 < tenant.max_running:
            out[tenant.id], free = 1, free - 1
    idle = max(0, room.idle - sum(out[t.id] > 0 and t.running == 0 for t in tenants))
    free -= min(headroom(room.slots), idle)
    level = [(out[t.id], t.id, t.max_running) for t in some if out[t.id] < t.max_running]
    heapify(level)
    while free > 0 and level:
        held, tenant_id, most = heappop(level)
        out[tenant_id], free = held + 1, free - 1
        if held + 1 < most:
            heappush(level, (held + 1, tenant_id, most))
    return out


def crowded(
    tenants: Sequence[Tenant], given: Mapping[UUID, Mapping[Stream, int]], room: Room
) -> set[UUID]:
    """Name the tenants one of whose slots a waiting run could use: their turns end when they are
    over.

    A run that waits at its own tenant's limit could use that tenant's slots only; one that waits
    because all slots, or its queue's workers, are taken could use anybody's. One that no worker
    serves, or that may not start yet, could use none.
    """
    unmet: dict[UUID, int] = {}
    for tenant in tenants:
        mine = given.get(tenant.id, {})
        unmet[tenant.id] = sum(
            waiting - mine.get(stream, 0)
            for stream, waiting in tenant.waiting.items()
            if stream.queue in room.queues and (stream.resumed or tenant.starts != 0)
        )
    after = {t.id: t.running + sum(given.get(t.id, {}).values()) for t in tenants}
    all_taken = any(unmet[t.id] > 0 and after[t.id] < t.max_running for t in tenants)
    return {t.id for t in tenants if after[t.id] > 0 and (all_taken or unmet[t.id] > 0)}


@dataclass(slots=True)
class _Account:
    debit_s: float = 0.0
    weight: float = 1.0
    turn_s: float = FIRST_TURN_S
    settled_s: float = 0.0
    running: int = 0
    admitted: int = 0
    measured_at_s: float = 0.0
    contended_at_s: float | None = None


class Ledger:
    """What admission remembers of each tenant between rounds. A new leader begins level."""

    def __init__(self) -> None:
        self._accounts: dict[UUID, _Account] = {}
        self._contending: set[UUID] = set()
        self._level_s = 0.0

    def admitted(self, tenant_id: UUID, count: int) -> None:
        """Note how many runs were let in, so that the mean of its turns can be told."""
        self._accounts[tenant_id].admitted += count

    def enter(
        self, tenants: Sequence[Tenant], queues: Mapping[str, int], now_s: float
    ) -> list[Tenant]:
        """Return the tenants with the mean of their turns and what they owe.

        Who begins to compete does so level with those who do: what it did not use while it asked
        for nothing is no credit, and what it used while nobody else wanted it is no debt.
        """
        seen = [self._measured(t, now_s) for t in tenants]
        now = {t.id: t for t in seen if _competes(t, queues)}
        kept = [t.pass_s for t in now.values() if t.id in self._contending]
        self._level_s = min(kept) if kept else self._level_s
        out = [self._levelled(t, now_s) if t.id in now else t for t in seen]
        self._contending = set(now)
        self._accounts = {t.id: self._accounts[t.id] for t in tenants}
        return out

    def _levelled(self, tenant: Tenant, now_s: float) -> Tenant:
        account = self._accounts[tenant.id]
        since, account.contended_at_s = account.contended_at_s, now_s
        if tenant.id in self._contending:
            return tenant
        short = since is not None and now_s - since < DEBT_S
        if short and tenant.pass_s >= self._level_s:
            return tenant
        account.debit_s = self._level_s * tenant.weight - tenant.spent_s
        return _with(tenant, account)

    def _measured(self, tenant: Tenant, now_s: float) -> Tenant:
        """Bring a tenant's account up to date: turns that ended, and another weight.

        Runs are let in elsewhere too while nobody waits: after a time without a round it is not
        known how many turns have ended.
        """
        account = self._accounts.setdefault(
            tenant.id, _Account(weight=tenant.weight, settled_s=tenant.settled_s)
        )
        ended = account.admitted - (tenant.running - account.running)
        recent = now_s - account.measured_at_s < DEBT_S
        if recent and ended > 0 and tenant.settled_s > account.settled_s:
            mean_s = (tenant.settled_s - account.settled_s) / ended
            account.turn_s += _SMOOTH * (mean_s - account.turn_s)
        account.settled_s, account.measured_at_s = tenant.settled_s, now_s
        account.running, account.admitted = tenant.running, 0
        shown = _with(tenant, account)
        if tenant.weight != account.weight:
            was_s = (shown.spent_s + account.debit_s) / account.weight
            account.debit_s = was_s * tenant.weight - shown.spent_s
            account.weight = tenant.weight
            shown = _with(tenant, account)
        return shown


def _with(tenant: Tenant, account: _Account) -> Tenant:
    return Tenant(
        tenant.id, tenant.running, tenant.max_running, tenant.waiting, tenant.weight,
        tenant.settled_s, tenant.held_s, tenant.starts, account.turn_s, account.debit_s,
    )  # fmt: skip


def _competes(tenant: Tenant, queues: Mapping[str, int]) -> bool:
    """Tell whether a tenant could use a slot now: it waits, for workers that are there, below its
    own limit.
    """
    return tenant.running < tenant.max_running and any(
        n > 0 and s.queue in queues and (s.resumed or tenant.starts != 0)
        for s, n in tenant.waiting.items()
    )
