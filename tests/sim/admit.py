"""The scheduler's admission and release, in the order of `harness_worker.scheduler.admit.AdmitLoop`
and `release.ReleaseLoop`. What they decide is `core.fairness` and the functions of `admit`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

# The Celery app wants to know its broker when it is imported; nothing here rings a bell.
os.environ.setdefault("HARNESS_REDIS_URL", "redis://127.0.0.1:1/0")

from harness_common.core.fairness import Ledger, Stream
from harness_common.core.inputs import Admit, Input
from harness_common.store.writes import Applied
from harness_worker.scheduler.admit import (
    Plan,
    Scene,
    charge_starts,
    fit_blocks,
    keep_within,
    make_plan,
    make_room,
    read_rates,
    read_tenant,
    wanted_streams,
)
from tests.sim.world import Call, Code

if TYPE_CHECKING:
    from tests.sim.sim import Sim
    from tests.sim.store import Store
    from tests.sim.world import World

SOON_S = 0.25
REFILL_S = 0.1
SHORTEST_S = 0.1


class Admitting:
    """The part of a scheduler that lets runs in."""

    sim: Sim
    world: World
    store: Store
    term: int | None
    again_in_s: float | None
    pg: Callable[[Any], Call]
    _ring: Callable[[Applied], None]
    _advance_rows: Callable[
        [Sequence[Any], Callable[[Any, int], Sequence[Input]], Any], Sequence[Applied | None]
    ]

    def _forget(self) -> None:
        """What the loop remembers begins with the term."""
        self.ledger = Ledger()
        self.seen: tuple[object, ...] = ()
        self.slots = 0
        self.busy_until = 0.0

    # release.ReleaseLoop

    def _release(self, look: dict[str, Any]) -> Code:
        done, store, term = 0, self.store, self.term or 0
        if look["behind"]:
            done += yield self.pg(lambda: self._held_to(term, store.release_sessions))
        if look["keyed"] or done:
            done += yield self.pg(lambda: self._held_to(term, store.release_keys))
        return done

    def _held_to(self, term: int, release: Callable[[], int]) -> int:
        self.store.lead_check(term)
        return release()

    # admit.AdmitLoop

    def _admit(self, look: dict[str, Any]) -> Code:
        seen = (look["capacity"], look["all_running"], look["ungranted"])
        if not look["queued"] and seen == self.seen and look["granted"] <= self.slots:
            return 0
        scene = yield from self._read_scene()
        self.slots = max(scene.room.slots, sum(t.running for t in scene.tenants))
        plan, applied = make_plan(scene), []
        if plan.touched:
            term = self.term or 0
            applied = yield self.pg(lambda: self._write_plan(scene, plan, term))
            for one in applied:
                self.ledger.admitted(one.run.tenant_id, 1)
                self._ring(one)
        self._pace(scene, look, len(applied))
        self.seen = () if plan.crowded else seen
        return len(applied)

    def _read_scene(self) -> Code:
        sim, store = self.sim, self.store
        reads = (
            store.streams_read,
            lambda: store.queue_load(sim.lease_s),
            store.slots_read,
        )
        if self.world.random() < 0.2:  # with something in between, now and then
            streams = yield self.pg(reads[0])
            load = yield self.pg(reads[1])
            rows = yield self.pg(reads[2])
        else:
            streams, load, rows = yield self.pg(lambda: [read() for read in reads])
        waiting: dict[UUID, dict[Stream, int]] = {}
        for row in streams:
            mine = waiting.setdefault(row["tenant_id"], {})
            mine[Stream(row["queue"], row["started"])] = row["waiting"]
        rates, now_s = read_rates(rows), rows[0]["now_s"]
        queues = {row["queue"] for row in streams}
        room = make_room(sim.scheduler_settings, rows, load, rates, now_s, queues)
        tenants = [read_tenant(row, waiting.get(row["tenant_id"], {}), rates) for row in rows]
        entered = self.ledger.enter(tenants, room.queues, now_s)
        return Scene(entered, {r["tenant_id"]: r for r in rows}, room, rates, now_s)

    def _write_plan(self, scene: Scene, plan: Plan, term: int) -> list[Applied]:
        """As `AdmitLoop._write`, one transaction."""
        store = self.store
        store.lead_check(term)
        held = store.slots_take(plan.touched)
        granted = fit_blocks(scene, plan, held)
        store.slots_write(
            [
                {
                    "tenant_id": t["tenant_id"], "granted": granted[t["tenant_id"]],
                    "crowded": t["tenant_id"] in plan.crowded,
                    "given": t["tenant_id"] in plan.given,
                }
                for t in held
            ]
        )  # fmt: skip
        room = {
            t["tenant_id"]: min(t["max_running"], granted[t["tenant_id"]]) - t["running"]
            for t in held
        }
        given = plan.given
        if self.sim.mutate == "limits":
            room = dict.fromkeys(room, 100)
            given = {t.id: dict.fromkeys(t.waiting, 100) for t in scene.tenants if t.waiting}
        streams = wanted_streams(given, room, scene.rates)
        if not streams:
            return []
        rows = keep_within(store.admit_pick(streams), given, room)
        begun = Counter(row["tenant_id"] for row in rows if not row["started"])
        applied = self._advance_rows(rows, lambda *_: [Admit()], held[0]["now"])
        if paid := charge_starts(scene, begun):
            store.starts_charge(paid)
        return [one for one in applied if one is not None]

    def _pace(self, scene: Scene, look: dict[str, Any], admitted: int) -> None:
        now_s = self.world.s
        if admitted:
            self.busy_until = now_s + SOON_S
        if look["queued"] and now_s < self.busy_until:
            self._ask_again(REFILL_S)
        waiting = {t.id for t in scene.tenants if any(t.waiting.values())}
        for tenant_id, rate in scene.rates.items():
            wait_s = rate.wait_s(scene.now_s)
            if wait_s > 0 and tenant_id in waiting:
                self._ask_again(max(SHORTEST_S, wait_s))

    def _ask_again(self, in_s: float) -> None:
        self.again_in_s = in_s if self.again_in_s is None else min(self.again_in_s, in_s)
