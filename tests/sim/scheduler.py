"""A scheduler process in the order of `harness_worker.scheduler.service`: seek the lead, look, then
reap, cancel, wake, release, admit and dispatch. Two of them run; the leader may die or freeze.

Its decisions are the product's: `liveness.Watch`, `Absence` and `loss`, `wake.inputs_when_due`,
`advance`; admission is in `tests.sim.admit`.
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
from harness_common.core.inputs import Input
from harness_common.core.liveness import SAMPLE_APART_S, Absence, Watch, loss
from harness_common.core.run import Status
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.rows import run_from_row
from harness_common.store.writes import Applied, Write
from harness_worker.scheduler.wake import inputs_when_due
from tests.sim import api
from tests.sim.admit import Admitting
from tests.sim.tables import bell_queue
from tests.sim.world import Call, Code, Nap, Process, RedisGone, Task, Violation

if TYPE_CHECKING:
    from tests.sim.sim import Sim

OVERDUE_AGAIN_S = 30.0
LOOK_EVERY_S = 1.5
BATCH = 200
REAP_BATCH = 50


class Scheduler(Admitting):
    """One scheduler process, leading or standing by."""

    def __init__(self, sim: Sim, proc: Process) -> None:
        self.sim, self.world, self.store, self.bus = sim, sim.world, sim.store, sim.bus
        self.proc = proc
        self.term: int | None = None
        self.again_in_s: float | None = None
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
        self._forget()
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
                    self.again_in_s = None
                    look, done = yield from self._tick()
                    pause_s = self._soonest(self._pause(look, done))
            except Conflict:
                world.log(self.proc.name, "is deposed")
                self.term, renew_at = None, 0.0
            except DatabaseUnavailable:
                self.term, renew_at = None, 0.0
                pause_s = 0.5 + world.rng.random()
            yield Nap(pause_s)

    def _seek(self) -> int | None:
        return self.store.lead(self.proc.id, self.sim.leader_ttl_s)

    def _soonest(self, pause_s: float) -> float:
        """Return the pause, or less when a loop asked for it."""
        return pause_s if self.again_in_s is None else min(pause_s, self.again_in_s)

    def _pause(self, look: dict[str, Any], done: int) -> float:
        if done:
            return 0.01
        sim = self.sim
        waits = look["queued"] or look["keyed"] or look["behind"] or look["orphaned"]
        longest = sim.tick_s if waits else sim.idle_tick_s
        due_in_s: float | None = look["due_in_s"]
        if due_in_s is not None and due_in_s > 0:
            return min(longest, max(0.02, due_in_s))
        return longest if due_in_s is None else sim.tick_s

    def _tick(self) -> Code:
        look = yield self.pg(lambda: self.store.look(self.sim.lease_s))
        done = 0
        if self.sim.mutate != "reaper":
            done += yield from self._reap(look)
        if look["forsaken"] and self.sim.mutate != "forsaken":
            done += yield from self._cancel_forsaken()
        done += yield from self._wake(look)
        if self.sim.mutate != "held":
            done += yield from self._release(look)
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
        while True:
            found, applied = yield self.pg(lambda term=self.term: self._recover_batch(term))
            done = [one for one in applied if one is not None]
            recovered += len(done)
            owners = [(one.run.id, self._owners[one.run.id]) for one in done]
            if owners:
                with suppress(RedisGone):
                    yield self.redis(lambda owners=owners: self._break_leases(owners))
            for one in done:
                self._ring(one)
            if found < REAP_BATCH:
                return recovered

    def _recover_batch(self, term: int) -> tuple[int, list[Applied | None]]:
        """One transaction: hold the orphans, write what their loss means."""
        self.store.lead_check(term)
        rows = self.store.orphans(REAP_BATCH)
        self._owners = {row["id"]: row["claimed_by"] for row in rows}
        if not rows:
            return 0, []
        moves = [
            (
                run_from_row(row),
                [
                    loss(
                        row["claimed_by"],
                        row["worker_name"],
                        row["died_why"],
                        solo=row["solo"],
                        late=row["late"],
                    )
                ],
            )
            for row in rows
        ]
        return len(rows), self._apply(moves, rows[0]["now"])

    def _break_leases(self, owners: Sequence[tuple[UUID, UUID]]) -> None:
        for run_id, worker in owners:
            self.bus.break_lease(run_id, worker)

    # cancel.CancelLoop

    def _cancel_forsaken(self) -> Code:
        rows = yield self.pg(self.store.forsaken)
        for run_id in rows:
            owner = yield self.pg(lambda r=run_id: self._cancel_child(r))
            self.sim.count("children cancelled")
            if owner is not None:
                self.bus.signal_cancel(self.proc, owner, run_id)
        return len(rows)

    def _cancel_child(self, run_id: UUID) -> UUID | None:
        api.cancel(self.store, self.sim.advance, run_id)
        owner: UUID | None = self.store.runs[run_id]["claimed_by"]
        return owner

    # wake.WakeLoop

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
        now, room = slot["now"], 0 if others_wait else slot["room"]
        rows = self.store.wake_pick(tenant_id, BATCH, now)
        return self._advance_rows(rows, lambda row, n: inputs_when_due(row, now, n < room), now)

    # looper.Shared

    def _advance_rows(
        self, rows: Sequence[Any], inputs: Callable[[Any, int], Sequence[Input]], now: Any
    ) -> Sequence[Applied | None]:
        """As `Shared.writes` and `apply`."""
        writes: list[Write] = []
        admitted = 0
        for row in rows:
            run = run_from_row(row)
            try:
                write = Write(run, self.sim.advance(run.state, inputs(row, admitted), now), now)
            except Conflict as error:
                raise Violation("INV15", f"the scheduler had to skip a run: {error}") from error
            admitted += write.transition.state.status is Status.RUNNING
            writes.append(write)
        return self.store.apply(writes)

    def _apply(self, moves: Sequence[tuple[Any, Any]], now: Any) -> list[Applied | None]:
        try:
            return self.store.apply(
                [Write(run, self.sim.advance(run.state, inputs, now), now) for run, inputs in moves]
            )
        except Conflict as error:
            raise Violation("INV15", f"the reaper had to skip a run: {error}") from error

    def _ring_all(self, applied: Sequence[Applied | None]) -> int:
        done = [one for one in applied if one is not None]
        for one in done:
            self._ring(one)
        return len(done)

    def _ring(self, applied: Applied) -> None:
        if applied.should_ring:
            run = applied.run
            self.bus.ring(self.proc, run.id, run.version, run.bell_queue)

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
        yield from self._break_dead_leases([row["id"] for row in rows])
        for row in rows:
            sim.count("rung again")
            self.bus.ring(self.proc, row["id"], row["version"], bell_queue(row))
        return len(rows)

    def _break_dead_leases(self, run_ids: list[UUID]) -> Code:
        if not run_ids:
            return
        with suppress(RedisGone):
            holders = yield self.redis(lambda: self.bus.holders(run_ids))
            if holders:
                rows = yield self.pg(self.store.workers_alive)
                alive = {row["incarnation"].int for row in rows}
                dead = [one for one in holders.items() if one[1].int not in alive]
                yield self.redis(lambda: self._break_leases(dead))

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
