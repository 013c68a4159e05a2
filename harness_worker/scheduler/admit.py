"""Admission: which queued runs may start now. `core.fairness` decides; this loop reads, and writes.

The fast path is `commands.start_run`, which admits at once when there is room and nobody waits.
This loop serves those who wait, and hands out the blocks of the global limit: only the leader
changes `granted`, and a tenant never runs more than it was granted, so the sum of the blocks bounds
the sum of running runs (INV13) without a global lock. That sum is also bounded by what live workers
can hold: a million queued runs wait in Postgres, not in the broker.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import structlog

from harness_common.core.fairness import (
    Ledger,
    Room,
    Stream,
    Tenant,
    blocks,
    crowded,
    headroom,
    share,
)
from harness_common.core.inputs import Admit
from harness_common.core.rate import Rate
from harness_common.settings import SchedulerSettings
from harness_common.store import json_codec
from harness_common.store.apply import apply
from harness_common.store.connection import Row, RowsHeld, run_sql, run_together
from harness_common.store.spans import send_queued
from harness_common.store.writes import Applied
from harness_common.telemetry.traces import traces
from harness_worker.scheduler import metrics
from harness_worker.scheduler.looper import HELD_S, PASS_BY_S, Look, Shared

log = structlog.get_logger()

SHARE: Final = 8
"""Slots that a tenant may take without asking while there is plenty."""
COLD: Final = 64
"""Runs let in before the first worker is there, so that it finds something to do at once."""
_STREAMS: Final = 2_000
_FEW: Final = 500
_ANY_SLOTS: Final = 2**31
_COUNT_FREELY: Final = 500
_COUNT_PAUSE_S: Final = 50e-6
_SOON_S: Final = 0.25
_REFILL_S: Final = 0.02
_SHORTEST_S: Final = 0.01
_BEGINNING: Final[Row] = {"tenant_id": UUID(int=0), "queue": "", "started": False}

Given = dict[UUID, dict[Stream, int]]


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything that one round is decided by."""

    tenants: list[Tenant]
    rows: dict[UUID, Row]
    room: Room
    rates: dict[UUID | None, Rate]
    """Limits of starts per second; None is the platform's."""
    now_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What one round wants to do."""

    given: Given
    blocks: dict[UUID, int]
    crowded: set[UUID]
    touched: list[UUID]
    """Tenants of whom something is to be written."""


class AdmitLoop:
    """Admits queued runs."""

    name = "admit"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._ledger = Ledger()
        self._load: list[Row] = []
        self._load_until = 0.0
        self._seen: tuple[object, ...] = ()
        self._busy_until = 0.0
        self._slots = 0
        self._slots_of: tuple[object, ...] = ()
        """What `_slots` follows from, as it was then: while that is so, no round gives out more."""
        self._after = _BEGINNING
        self._waiting: list[UUID] = []
        self._pass_by_until = 0.0

    async def run_once(self, look: Look) -> int:
        """Share out the free slots, move the blocks to where they are wanted, and admit."""
        slots_of = (look.capacity, look.all_running)
        seen = (*slots_of, look.ungranted)
        if not look.queued and seen == self._seen and look.granted <= self._slots:
            return 0
        scene = await self._read(known=self._slots_of == slots_of)
        self._slots = max(scene.room.slots, sum(t.running for t in scene.tenants))
        self._slots_of = slots_of
        plan = make_plan(scene)
        applied = await self._write(scene, plan) if plan.touched else []
        self._pace(scene, look, admitted=len(applied))
        # Marks are taken off by one more round after the last run was let in.
        passed_by = time.monotonic() < self._pass_by_until
        self._seen = () if plan.crowded or passed_by else seen
        self._shared.count("runs_admitted", len(applied))
        return len(applied)

    # ── reading ──────────────────────────────────────────────────────────────────────────────────

    async def _read(self, *, known: bool) -> Scene:
        shared, config = self._shared, self._shared.settings.scheduler
        streams, rows = await self._streams_and_slots(self._slots if known else _ANY_SLOTS)
        self._go_round(streams)
        load = self._load
        waiting: dict[UUID, dict[Stream, int]] = {}
        for row in streams:
            mine = waiting.setdefault(row["tenant_id"], {})
            mine[Stream(row["queue"], row["started"])] = row["waiting"]
        self._waiting = list(waiting)
        if not waiting.keys() <= {row["tenant_id"] for row in rows}:
            rows = await shared.db.fetch("slots_read", {"waiting": self._waiting, "few": _FEW})
        rates = read_rates(rows)
        now_s = rows[0]["now_s"] if rows else 0.0
        room = make_room(config, rows, load, rates, now_s, {row["queue"] for row in streams})
        tenants = [read_tenant(row, waiting.get(row["tenant_id"], {}), rates) for row in rows]
        entered = self._ledger.enter(tenants, room.queues, now_s)
        return Scene(entered, {r["tenant_id"]: r for r in rows}, room, rates, now_s)

    def _go_round(self, streams: Sequence[Row]) -> None:
        """Let the next round begin behind the last stream when there may be more of them."""
        self._after = _BEGINNING
        for row in streams:
            if row["nth"] == _STREAMS:
                self._after = {name: row[name] for name in _BEGINNING}

    async def _streams_and_slots(self, slots: int) -> tuple[list[Row], list[Row]]:
        """Read what waits and, in the same round trip, what tenants hold (of those that wait, who
        did so a round ago) and what each queue holds.

        The last is counted less often when it is much; in between what was let in is added, so that
        the bound holds.
        """
        shared, config = self._shared, self._shared.settings
        params = {
            "streams": _STREAMS, "most": config.scheduler.batch, "slots": slots,
            "skipped": shared.skipped(),
        }  # fmt: skip
        statements: list[tuple[str, Row]] = [
            ("streams_read", self._after | params),
            ("slots_read", {"waiting": self._waiting, "few": _FEW}),
        ]
        counting = time.monotonic() >= self._load_until
        if counting:
            statements.append(("queue_load", {"lease_s": config.worker.lease_s}))
        async with shared.db.connection() as conn:
            answers = await run_together(conn, statements, shared.db.timeout_s)
        if counting:
            self._load = answers[2]
            counted = sum(row["running"] for row in self._load)
            if counted > _COUNT_FREELY:
                self._load_until = time.monotonic() + min(_SOON_S, counted * _COUNT_PAUSE_S)
        return answers[0], answers[1]

    # ── writing ──────────────────────────────────────────────────────────────────────────────────

    async def _write(self, scene: Scene, plan: Plan) -> list[Applied]:
        """Write what was decided; a tenant whose slots somebody else holds is waited for a little,
        then the others go on without it.
        """
        if time.monotonic() >= self._pass_by_until:
            try:
                return await self._write_of(scene, plan, "slots_take")
            except RowsHeld:
                self._pass_by_until = time.monotonic() + PASS_BY_S
                log.warning("admission.held_up", tenants=len(plan.touched))
        return await self._write_of(scene, plan, "slots_take_free")

    async def _write_of(self, scene: Scene, plan: Plan, take: str) -> list[Applied]:
        """Move the blocks, mark who is crowded, and let in what was given, in one transaction;
        then ring, for those of the least given first.
        """
        shared, timeout_s = self._shared, self._shared.db.timeout_s
        async with shared.db.transaction(HELD_S) as conn:
            held = await shared.led(conn, take, {"tenants": plan.touched})
            granted = fit_blocks(scene, plan, held)
            body = [
                {
                    "tenant_id": row["tenant_id"], "granted": granted[row["tenant_id"]],
                    "crowded": row["tenant_id"] in plan.crowded,
                    "given": row["tenant_id"] in plan.given,
                }
                for row in held
            ]  # fmt: skip
            room = {
                row["tenant_id"]: min(row["max_running"], granted[row["tenant_id"]])
                - row["running"]
                for row in held
            }
            streams = wanted_streams(plan.given, room, scene.rates)
            params = {"streams": json_codec.dumps_text(streams), "skipped": shared.skipped()}
            _, picked = await run_together(
                conn,
                [("slots_write", {"slots": json_codec.dumps_text(body)}), ("admit_pick", params)],
                timeout_s,
            )
            if not picked:
                return []
            rows = keep_within(picked, plan.given, room)
            writes = shared.writes(rows, lambda *_: [Admit()], held[0]["now"])
            applied = [
                one for one in await apply(conn, writes, timeout_s=timeout_s) if one is not None
            ]
            begun = Counter(row["tenant_id"] for row in rows if not row["started"])
            if paid := charge_starts(scene, begun):
                params = {"paid": json_codec.dumps_text(paid)}
                await run_sql(conn, "starts_charge", params, timeout_s)
        ran_nothing = {row["tenant_id"] for row in held if row["running"] == 0}
        self._note(applied, {row["id"]: row["queued_at"] for row in rows}, ran_nothing)
        return applied

    def _note(
        self,
        applied: Sequence[Applied],
        queued_at: Mapping[UUID, datetime],
        newcomers: set[UUID],
    ) -> None:
        """Count who was let in, and ring; the first run of a newcomer goes before all others."""
        for one in applied:
            self._ledger.admitted(one.run.tenant_id, 1)
            since = queued_at[one.run.id]
            metrics.admission_wait_seconds.observe(max(0.0, (one.now - since).total_seconds()))
            if traces.on:
                send_queued(one.run, since, one.now)
            first = one.run.tenant_id in newcomers
            newcomers.discard(one.run.tenant_id)
            self._shared.ring(one, newcomer=first)
        let_in = Counter(one.run.queue for one in applied)
        for row in self._load:
            row["running"] += let_in[row["queue"]]

    def _pace(self, scene: Scene, look: Look, *, admitted: int) -> None:
        """Ask for the next round: soon while slots become free quickly, or when a rate allows."""
        now = time.monotonic()
        if admitted:
            self._busy_until = now + _SOON_S
        if look.queued and now < self._busy_until:
            self._shared.ask_again(_REFILL_S)
        waiting = {t.id for t in scene.tenants if any(t.waiting.values())}
        for tenant_id, rate in scene.rates.items():
            wait_s = rate.wait_s(scene.now_s)
            if wait_s > 0 and (tenant_id in waiting or (tenant_id is None and waiting)):
                self._shared.ask_again(max(_SHORTEST_S, wait_s))


def make_room(
    config: SchedulerSettings,
    rows: Sequence[Row],
    load: Sequence[Row],
    rates: Mapping[UUID | None, Rate],
    now_s: float,
    queues: set[str],
) -> Room:
    """Bound the slots by the global limit and by what live workers can hold."""
    limit = config.max_running
    if rows and rows[0]["all_running"] is not None:
        limit = rows[0]["all_running"]
    places = {r["queue"]: int(config.worker_factor * r["capacity"]) for r in load}
    total = int(config.worker_factor * load[0]["total"]) if load else 0
    if total == 0:
        total, places = COLD, dict.fromkeys(queues, COLD)
    held = {r["queue"]: r["running"] for r in load}
    stuck = sum(n for queue, n in held.items() if not places.get(queue))
    return Room(
        slots=min(limit, total + stuck),
        queues={q: n - held.get(q, 0) for q, n in places.items() if n > 0},
        kept={q: headroom(n) for q, n in places.items()},
        starts=rates[None].allowed(now_s) if None in rates else None,
        most=config.batch,
        idle=rows[0]["idle"] if rows else 0,
    )


def make_plan(scene: Scene) -> Plan:
    """Decide who is let in, the blocks, and who is crowded."""
    rows, room = scene.rows, scene.room
    given = share(scene.tenants, room)
    plenty = len(rows) * SHARE <= room.slots - sum(t.running for t in scene.tenants)
    likely = [t for t, row in rows.items() if plenty or row["recent"]]
    counts = {t: sum(streams.values()) for t, streams in given.items()}
    wanted = blocks(scene.tenants, counts, likely, room)
    marked = crowded(scene.tenants, given, room)
    touched = [
        t
        for t, row in rows.items()
        if t in given or wanted[t] != row["granted"] or row["crowded"] != (t in marked)
    ]
    return Plan(given, wanted, marked, touched)


def read_rates(rows: Sequence[Row]) -> dict[UUID | None, Rate]:
    """Collect the limits of starts per second."""
    out: dict[UUID | None, Rate] = {}
    for row in rows:
        if row["starts_per_s"] is not None:
            out[row["tenant_id"]] = Rate(row["starts_per_s"], row["starts_tat_s"] or 0.0)
    if rows and rows[0]["all_starts_per_s"] is not None:
        out[None] = Rate(rows[0]["all_starts_per_s"], rows[0]["all_starts_tat_s"] or 0.0)
    return out


def read_tenant(
    row: Row, waiting: Mapping[Stream, int], rates: Mapping[UUID | None, Rate]
) -> Tenant:
    """Read a tenant as admission sees it."""
    rate = rates.get(row["tenant_id"])
    return Tenant(
        id=row["tenant_id"],
        running=row["running"],
        max_running=row["max_running"],
        waiting=waiting,
        weight=row["weight"],
        settled_s=row["settled_s"],
        held_s=row["held_s"],
        starts=None if rate is None else rate.allowed(row["now_s"]),
    )


def fit_blocks(scene: Scene, plan: Plan, held: Sequence[Row]) -> dict[UUID, int]:
    """Fit the wanted blocks to what runs now: take back first, then give what is left to give.

    Nobody but the leader changes a block, so that those of tenants that are not held are known.
    """
    out = {t: row["granted"] for t, row in scene.rows.items()}
    for row in held:
        tenant_id = row["tenant_id"]
        out[tenant_id] = max(row["running"], min(plan.blocks[tenant_id], row["granted"]))
    spare = scene.room.slots - sum(out.values())
    for row in sorted(held, key=lambda r: r["tenant_id"] not in plan.given):
        more = min(plan.blocks[row["tenant_id"]] - out[row["tenant_id"]], spare)
        if more > 0:
            out[row["tenant_id"]] += more
            spare -= more
    return out


def wanted_streams(
    given: Given, room: Mapping[UUID, int], rates: Mapping[UUID | None, Rate]
) -> list[dict[str, Any]]:
    """Say how many runs of each stream to look at.

    Streams of one queue share what the queue was given, so that priority decides between them; but
    no more starts than were given when starts are limited.
    """
    out: list[dict[str, Any]] = []
    for rank, (tenant_id, mine) in enumerate(given.items()):
        limited = None in rates or tenant_id in rates
        queues: Counter[str] = Counter()
        for stream, count in mine.items():
            queues[stream.queue] += count
        for queue, count in queues.items():
            most = min(count, room.get(tenant_id, 0))
            for resumed in (True, False):
                bound = mine.get(Stream(queue, resumed), 0) if limited else most
                if min(bound, most) > 0:
                    out.append(
                        {
                            "tenant_id": tenant_id, "rank": rank, "queue": queue,
                            "started": resumed, "room": min(bound, most), "queue_room": most,
                        }
                    )  # fmt: skip
    return out


def keep_within(rows: Sequence[Row], given: Given, room: Mapping[UUID, int]) -> list[Row]:
    """Keep of each tenant's runs, which come in their order, as many as it has room for."""
    left = {t: min(room.get(t, 0), sum(streams.values())) for t, streams in given.items()}
    out = []
    for row in rows:
        if left[row["tenant_id"]] > 0:
            left[row["tenant_id"]] -= 1
            out.append(row)
    return out


def charge_starts(scene: Scene, begun: Mapping[UUID, int]) -> list[dict[str, Any]]:
    """Charge starts to the tenants and the platform whose starts are limited."""
    out: list[dict[str, Any]] = []
    for tenant_id, rate in scene.rates.items():
        count = sum(begun.values()) if tenant_id is None else begun.get(tenant_id, 0)
        if count:
            scene.rates[tenant_id] = rate.charged(scene.now_s, count)
            out.append({"tenant_id": tenant_id, "tat_s": scene.rates[tenant_id].tat_s})
    return out
