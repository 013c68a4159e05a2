"""A scheduler process in the order of `harness_worker.scheduler.service`: seek the lead, look, then
reap, wake, admit and dispatch. Two of them run; the leader may die or freeze.

Its decisions are the product's: `liveness.Watch`, `Absence` and `loss`, `admit.blocks`, `advance`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

# The Celery app wants to know its broker when it is imported; nothing here rings a bell.
os.environ.setdefault("HARNESS_REDIS_URL", "redis://127.0.0.1:1/0")

from harness_common.core.errors import Conflict
from harness_common.core.inputs import Admit, Input, TimerDue
from harness_common.core.liveness import SAMPLE_APART_S, Absence, Watch, loss
from harness_common.store.apply import Applied, Write
from harness_common.store.db import DatabaseUnavailable
from harness_common.store.rows import run_from_row
from harness_worker.scheduler.admit import SHARE, blocks
from tests.sim.world import Call, Code, Nap, Process, RedisGone, Task, Violation

if TYPE_CHECKING:
    from tests.sim.sim import Sim

OVERDUE_AGAIN_S = 30.0
LOOK_EVERY_S = 0.5
BATCH = 200


class Scheduler:
    """One scheduler process, leading or standing by."""

    def __init__(self, sim: Sim, proc: Process) -> None:
        self.sim, self.world, self.store, self.bus = sim, sim.world, sim.store, sim.bus
        self.proc = proc
        self.term: int | None = None
        self._task = self.world.spawn(proc, self._lead)
        self.bus.sleepers.append(lambda: self.world.wake(self._task, 0.005))

    def pg(self, work: Any) -> Call:
        return Call(self.sim.postgres, work, 2.0)

    def redis(self, work: Any) -> Call:
        return Call(self.sim.redis, work, 0.5)

    def _new_term(self) -> None:
        """As `make_loops`: what the loops remember begins with the term."""
        self.watch = Watch(self.sim.lease_s)
        self.absence = Absence()
        self.recovered_at = 0.0
        self.redis_run_id = -1
        self.redis_changed_at = self.world.s
        self.looked_at = self.broker_looked_at = 0.0
        self.reachable = True

    # service.Scheduler._lead, tick

    def _lead(self, task: Task) -> Code:
        del task
        sim, world = self.sim, self.world
        renew_at, pause_s = 0.0, sim.tick_s
        while True:
            try:
                if world.s >= renew_at:
                    was, term = self.term, (yield self.pg(self._seek))
                    self.term = term
                    renew_at = world.s + sim.leader_ttl_s / 4
                    if term is not None and term != was:
                        world.log(self.proc.name, "leads, term", term)
                        sim.count("terms")
                        self._new_term()
                if self.term is None:
                    pause_s = sim.leader_ttl_s / 4
                else:
                    look, done = yield from self._tick()
                    pause_s = self._pause(look, done)
            except Conflict:
                world.log(self.proc.name, "is deposed")
                self.term, renew_at = None, 0.0
            except DatabaseUnavailable:
                self.term, renew_at = None, 0.0
                pause_s = 0.5 + world.rng.random()
            yield Nap(pause_s)

    def _seek(self) -> int | None:
        return self.store.lead(self.proc.id, self.sim.leader_ttl_s)

    def _pause(self, look: dict[str, Any], done: int) -> float:
        if done:
            return 0.01
        sim = self.sim
        longest = sim.tick_s if look["queued"] or look["orphaned"] else sim.idle_tick_s
        due_in_s: float | None = look["due_in_s"]
        if due_in_s is not None and due_in_s > 0:
            return min(longest, max(0.02, due_in_s))
        return longest if due_in_s is None else sim.tick_s

    def _tick(self) -> Code:
        look = yield self.pg(lambda: self.store.look(self.sim.lease_s))
        done = 0
        if self.sim.mutate != "reaper":
            done += yield from self._reap(look)
        done += yield from self._wake(look)
        done += yield from self._admit(look)
        if self.sim.mutate != "ring":
            done += yield from self._dispatch(look)
        return look, done

    # reap.ReapLoop

    def _reap(self, look: dict[str, Any]) -> Code:
        self.watch.look(look["now"])
        died = 0
        if look["stale"]:
            died += yield from self._condemn_silent(look)
        died += yield from self._condemn_absent()
        recovered = 0
        overdue = look["due_in_s"] is not None and look["due_in_s"] <= 0
        if died or look["orphaned"] or (overdue and self.world.s - self.recovered_at > 1.0):
            self.recovered_at = self.world.s
            recovered = yield from self._recover()
            term = self.term or 0
            yield self.pg(lambda: self.store.overdue(OVERDUE_AGAIN_S, term))
        return died + recovered

    def _condemn_silent(self, look: dict[str, Any]) -> Code:
        if not self.watch.silence_counts(look["now"]) and self.sim.mutate != "watch":
            return 0
        died = 0
        for row in (yield self.pg(self.store.workers_alive)):
            if row["silent_s"] > self.sim.lease_s:
                why = f"no heartbeat for {row['silent_s']:.1f} s"
                died += yield from self._condemn(row["incarnation"], why, look["now"])
        return died

    def _condemn_absent(self) -> Code:
        now = self.world.s
        if now - self.looked_at < SAMPLE_APART_S / 2:
            return 0
        self.looked_at = now
        connected = yield from self._connected()
        if connected is None or now - self.redis_changed_at < self.sim.lease_s:
            self.absence.since.clear()
            return 0
        if not connected and not self.absence.since:
            return 0
        died = 0
        alive = yield self.pg(self.store.workers_alive)
        silent_s = {row["incarnation"]: row["silent_s"] for row in alive}
        for worker in self.absence.absent(now, connected, silent_s):
            died += yield from self._condemn(worker, "its connection is gone", None)
            self.absence.since.pop(worker, None)
        return died

    def _connected(self) -> Code:
        bus = self.bus
        try:
            run_id, clients = yield self.redis(
                lambda: (bus.run_id, bus.connected([w.proc for w in bus.consumers]))
            )
        except RedisGone:
            self.redis_changed_at = self.world.s
            return None
        if run_id != self.redis_run_id:
            self.redis_run_id, self.redis_changed_at = run_id, self.world.s
        return clients

    def _condemn(self, worker: UUID, why: str, silent_at: datetime | None) -> Code:
        term, lease_s = self.term, self.sim.lease_s
        return (
            yield self.pg(lambda: self.store.worker_died(worker, why, silent_at, lease_s, term))
        )

    def _recover(self) -> Code:
        recovered = 0
        for row in (yield self.pg(lambda: self.store.orphans(BATCH))):
            applied = yield self.pg(lambda row=row, term=self.term: self._recover_one(row, term))
            if applied is None:
                continue
            recovered += 1
            with suppress(RedisGone):
                yield self.redis(
                    lambda row=row: self.bus.break_lease(row["run_id"], row["claimed_by"])
                )
            self._ring(applied)
        return recovered

    def _recover_one(self, row: dict[str, Any], term: int) -> Applied | None:
        """One transaction: lock the run, compare its claim, write the loss."""
        self.store.lead_check(term)
        held = self.store.read_run(row["run_id"])
        if held is None or held["claim_id"] != row["claim_id"]:
            return None
        run = run_from_row(held)
        lost = loss(row["claimed_by"], row["name"], row["died_why"])
        (applied,) = self._apply([(run, [lost])], held["now"])
        return applied

    # wake.WakeLoop, admit.AdmitLoop

    def _wake(self, look: dict[str, Any]) -> Code:
        if look["due_in_s"] is None or look["due_in_s"] > 0:
            return 0
        woken = 0
        for tenant_id in (yield self.pg(self.store.due)):
            applied = yield self.pg(
                lambda t=tenant_id, term=self.term: self._wake_tenant(t, term, look["queued"])
            )
            woken += self._ring_all(applied)
        return woken

    def _wake_tenant(
        self, tenant_id: UUID, term: int, others_wait: bool
    ) -> Sequence[Applied | None]:
        self.store.lead_check(term)
        slot = self.store.slots_lock(tenant_id)
        room = 0 if others_wait else slot["room"]
        rows = self.store.wake_pick(tenant_id, BATCH, slot["now"])
        return self._advance_rows(
            rows, lambda n: [TimerDue(), Admit()] if n < room else [TimerDue()], slot["now"]
        )

    def _admit(self, look: dict[str, Any]) -> Code:
        if not (look["queued"] or look["ungranted"]):
            return 0
        yield from self._grant()
        done = 0
        while True:
            admitted = 0
            for tenant_id in (yield self.pg(self.store.admit_tenants)):
                applied = yield self.pg(
                    lambda t=tenant_id, term=self.term: self._admit_tenant(t, term)
                )
                admitted += self._ring_all(applied)
            if not admitted:
                return done
            done += admitted

    def _admit_tenant(self, tenant_id: UUID, term: int) -> Sequence[Applied | None]:
        self.store.lead_check(term)
        slot = self.store.slots_lock(tenant_id)
        room = min(SHARE, slot["room"])
        if room <= 0:
            return []
        rows = self.store.admit_pick(tenant_id, room)
        return self._advance_rows(rows, lambda _: [Admit()], slot["now"])

    def _grant(self) -> Code:
        """As `AdmitLoop._grant`: take back first, then give."""
        term, limit = self.term or 0, self.sim.max_running
        rows = yield self.pg(self.store.slots_read)
        wanted = blocks(rows, limit)
        current = {r["tenant_id"]: r["granted"] for r in rows}
        changes = [(t, n) for t, n in wanted.items() if n != current[t]]
        for tenant_id, n in sorted(changes, key=lambda c: c[1] > current[c[0]]):
            granted = n
            if granted > current[tenant_id]:
                spare = limit - sum(current.values())
                granted = min(granted, current[tenant_id] + max(0, spare))
            answer = yield self.pg(
                lambda t=tenant_id, g=granted: self.store.slots_grant(t, g, term)
            )
            if answer is not None:
                current[tenant_id] = answer

    # looper.Shared

    def _advance_rows(
        self, rows: Sequence[Any], inputs: Callable[[int], Sequence[Input]], now: Any
    ) -> Sequence[Applied | None]:
        return self._apply([(run_from_row(row), inputs(n)) for n, row in enumerate(rows)], now)

    def _apply(self, moves: Sequence[tuple[Any, Any]], now: Any) -> list[Applied | None]:
        try:
            return self.store.apply(
                [Write(run, self.sim.advance(run.state, inputs, now), now) for run, inputs in moves]
            )
        except Conflict as error:
            raise Violation("INV15", f"the scheduler had to skip a run: {error}") from error

    def _ring_all(self, applied: Sequence[Applied | None]) -> int:
        done = [one for one in applied if one is not None]
        for one in done:
            self._ring(one)
        return len(done)

    def _ring(self, applied: Applied) -> None:
        if applied.should_ring:
            self.bus.ring(self.proc, applied.run.id, applied.run.version)

    # dispatch.DispatchLoop

    def _dispatch(self, look: dict[str, Any]) -> Code:
        sim, term = self.sim, self.term or 0
        forgot = yield from self._broker_forgot()
        if not self.reachable:
            return 0
        if forgot:
            yield self.pg(lambda: self.store.ring_all(term))
        elif look["due_in_s"] is None or look["due_in_s"] > 0:
            return 0
        first_s = max(sim.ring_after_s, 3 * look["queue_age_s"])
        longest_s = max(sim.ring_after_max_s, 3 * look["queue_age_s"])
        rows = yield self.pg(
            lambda: [dict(r) for r in self.store.ring(term, BATCH, first_s, longest_s)]
        )
        for row in rows:
            sim.count("rung again")
            self.bus.ring(self.proc, row["id"], row["version"])
        return len(rows)

    def _broker_forgot(self) -> Code:
        if self.world.s - self.broker_looked_at < LOOK_EVERY_S:
            return False
        self.broker_looked_at = self.world.s
        try:
            missing = yield self.redis(self._mark)
        except RedisGone:
            self.reachable = False
            return False
        back, self.reachable = not self.reachable, True
        return missing or back

    def _mark(self) -> bool:
        missing, self.bus.marker = not self.bus.marker, True
        return missing
