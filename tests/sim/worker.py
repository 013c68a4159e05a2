"""A worker process in the order of `harness_worker.advance.answer`: lease, claim, step, settle,
release, ring; and beside it the heartbeat and the renewal of leases (`harness_worker.heartbeat`).

What is awaited there is yielded here. The decisions are the product's own: `rules.advance`,
`apply.prepare` and `apply.finish`, `apply.arrived`, `StoredRun.owned_by`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from harness_common.core.errors import Limited, LostOwnership
from harness_common.core.inputs import Input, Released, StepDone, StepFailed
from harness_common.core.lease import Ownership
from harness_common.core.liveness import heartbeat_timeout_s
from harness_common.core.retry import classify
from harness_common.core.step import StepCancelled
from harness_common.store.apply import arrived
from harness_common.store.claim import fresh_calls
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.rows import StoredRun, run_from_row
from harness_common.store.writes import Applied, NextClaim, StepRecord, Write
from tests.sim.steps import CancelAsked, StepContext, StepError, run_step_kind
from tests.sim.world import Call, Code, Interrupted, Process, RedisGone, Task

if TYPE_CHECKING:
    from tests.sim.sim import Sim


@dataclass(slots=True, eq=False)
class Held:
    """As `runtime.Held`."""

    run_id: UUID
    lease: str
    claim_id: UUID
    task: Task
    leased: bool = False
    in_step: bool = False
    cancel_requested: bool = False
    release_asked: bool = False
    writing: int = 0

    def stop_asked(self) -> bool:
        return self.cancel_requested or self.release_asked


class Worker:
    """One incarnation of a worker process."""

    def __init__(self, sim: Sim, proc: Process, concurrency: int, queues: Sequence[str]) -> None:
        self.sim, self.world, self.store, self.bus = sim, sim.world, sim.store, sim.bus
        self.proc, self.concurrency, self.queues = proc, concurrency, queues
        self.alone = queues[0].endswith(".quarantine")
        self.busy = 0
        """Doorbells being answered."""
        self.held: dict[UUID, Held] = {}
        self.known: dict[UUID, list[str]] = {}
        self.stopping = False
        self.queue_age_s = 0.0
        self._read_at = 0
        self._reading: datetime | None = None

    def pg(self, work: Any) -> Call:
        return Call(self.sim.postgres, work, 2.0)

    def redis(self, work: Any) -> Call:
        return Call(self.sim.redis, work, 0.5)

    # PgClock: the last answer plus what has passed since

    def set_clock(self, reading: datetime) -> None:
        self._reading, self._read_at = reading, self.world.now

    def clock(self) -> datetime:
        assert self._reading is not None
        return self._reading + timedelta(microseconds=self.world.now - self._read_at)

    # The life of the process

    def start(self) -> None:
        self.world.spawn(self.proc, self._begin)

    def _begin(self, task: Task) -> Code:
        del task
        yield from self._register()
        self.bus.consumers.append(self)
        self.world.spawn(self.proc, self._heartbeats)
        self.world.spawn(self.proc, self._renewals)

    def _register(self) -> Code:
        while True:
            try:
                row = yield self.pg(
                    lambda: self.store.worker_register(
                        self.proc.id, self.proc.name, self.concurrency, self.queues
                    )
                )
            except DatabaseUnavailable:
                yield 0.3
                continue
            self.set_clock(row["now"])
            return

    def stop(self, grace_s: float) -> None:
        """SIGTERM: take nothing more, wait, hand over, leave."""
        self.stopping = True
        self.world.spawn(self.proc, self._leave, grace_s)

    def _leave(self, task: Task, grace_s: float) -> Code:
        del task
        with suppress(DatabaseUnavailable):
            yield self.pg(lambda: self.store.worker_stopping(self.proc.id))
        yield from self._until_idle(grace_s)
        for held in list(self.held.values()):
            held.release_asked = True
            if held.in_step and not held.writing:
                self._interrupt(held, "release")
        yield from self._until_idle(20.0)
        with suppress(DatabaseUnavailable):
            yield self.pg(lambda: self.store.worker_leave(self.proc.id))
        self.proc.alive = False
        self.world.log(self.proc.name, "has left, holding", len(self.held))

    def _until_idle(self, limit_s: float) -> Code:
        until = self.world.s + limit_s
        while self.held and self.world.s < until:
            yield 0.1

    def die(self) -> None:
        """A tool killed the process."""
        self.sim.faults.kill(self, seen=True)

    def hear(self, run_id: UUID, version: int) -> None:
        self.busy += 1
        self.world.spawn(self.proc, self._answer, run_id, version)

    def signalled(self, run_id: UUID) -> None:
        self.world.spawn(self.proc, self._signal, run_id)

    def _signal(self, task: Task, run_id: UUID) -> Code:
        del task
        self._request_cancel(run_id)
        yield 0.0

    def _request_cancel(self, run_id: UUID) -> None:
        held = self.held.get(run_id)
        if held is not None and not held.cancel_requested:
            held.cancel_requested = True
            if held.in_step:
                self._interrupt(held, "cancel")

    def _interrupt(self, held: Held, why: str) -> None:
        held.in_step = False
        self.world.interrupt(held.task, why)

    # advance.answer

    def _answer(self, task: Task, run_id: UUID, version: int) -> Code:
        world = self.world
        if self.stopping or run_id in self.held:
            self.busy -= 1
            return
        claim_id = world.uuid()
        held = Held(run_id, f"{self.proc.id.hex}:{claim_id.hex}", claim_id, task)
        self.held[run_id] = held
        bell: StoredRun | None = None
        try:
            if (yield from self._take_lease(held)):
                known = self.known.get(run_id, [])
                row = yield self.pg(
                    lambda: self.store.claim(
                        run_id, version, claim_id, len(known), self.proc.id, self.sim.step_limit_s
                    )
                )
                if row is not None:
                    last = yield from self._work(task, held, row, known)
                    if last.should_ring:
                        bell = last.run
        except LostOwnership:
            world.log(self.proc.name, "lost ownership", run_id.hex[:4])
        except DatabaseUnavailable:
            world.log(self.proc.name, "leaves", run_id.hex[:4], "without Postgres")
        self.sim.audit.active.pop(task.id, None)
        del self.held[run_id]
        if held.leased:
            held.leased = False
            with suppress(RedisGone):
                yield self.redis(lambda: self.bus.release(run_id, held.lease))
        self.busy -= 1
        if bell is not None:
            self.bus.ring(self.proc, bell.id, bell.version, bell.bell_queue)

    def _take_lease(self, held: Held) -> Code:
        try:
            held.leased = yield self.redis(lambda: self.bus.take(held.run_id, held.lease))
        except RedisGone:
            held.leased = True
        return held.leased

    # advance._work, _one_step, _run_step

    def _work(self, task: Task, held: Held, row: dict[str, Any], known: list[str]) -> Code:
        sim, world = self.sim, self.world
        run = run_from_row(row)
        sim.audit.active[task.id] = self.proc.id
        self.set_clock(row["now"])
        if row["rung_at"] is not None and run.rings == 1:
            age_s = (row["now"] - row["rung_at"]).total_seconds()
            self.queue_age_s = max(self.queue_age_s, age_s)
        messages = known[: run.state.messages] + row["new_messages"]
        calls: Sequence[dict[str, Any]] = row["calls"] or ()
        until, done = world.s + sim.inline_s, 0
        steps_per_task = 1 if self.alone or row["rated"] else sim.steps_per_task
        while True:
            done += 1
            go_on = (
                done < steps_per_task
                and world.s < until
                and not self.stopping
                and not held.cancel_requested
            )
            keep = NextClaim(world.uuid(), self.proc.id, sim.step_limit_s) if go_on else None
            sim.audit.must(
                len(messages) == run.state.messages,
                "context",
                f"{len(messages)} messages known of {run.state.messages}",
            )
            applied: Applied = yield from self._one_step(task, held, row, run, calls, keep)
            sim.audit.acknowledged(run.id, applied.run.version)
            messages = messages + [""] * len(applied.transition.messages)
            if applied.run.state.status in sim.terminal:
                self.known.pop(run.id, None)
            elif len(messages) == applied.run.state.messages:
                self.known[run.id] = messages
            if applied.run.state.status != "running":
                self.bus.nudge(self.proc)
            if keep is None or applied.run.claim_id != keep.claim_id:
                return applied
            held.claim_id = keep.claim_id
            run = applied.run
            calls = fresh_calls(applied) if applied.transition.proposed else ()

    def _one_step(
        self,
        task: Task,
        held: Held,
        row: dict[str, Any],
        run: StoredRun,
        calls: Sequence[dict[str, Any]],
        keep: NextClaim | None,
    ) -> Code:
        started_at = self.clock()
        record = StepRecord(started_at, self.proc.id)
        ctx = StepContext(self, run, calls, started_at, held)
        outcome: Input
        try:
            yield from self._wait_for_place(row)
            outcome = yield from self._run_step(task, held, ctx)
            if isinstance(outcome, StepDone) and self._turn_is_over(row, run):
                outcome = replace(outcome, turn_over=True)
                self.sim.count("turns over")
        except StepError as error:
            failure = classify(error.error)
            jitter = 0.0 if failure.code == "STEP_RATE" else self.world.rng.random()
            outcome = StepFailed(failure, started_at, jitter)
        held.in_step = False
        if isinstance(outcome, Released):
            keep = None
        self.world.log(
            self.proc.name, f"task {task.id} step", run.state.step + 1, type(outcome).__name__,
            type(outcome.result).__name__ if isinstance(outcome, StepDone) else "",
        )  # fmt: skip
        return (yield from self._settle(task, run, [outcome], record, keep))

    def _wait_for_place(self, row: dict[str, Any]) -> Code:
        wait_s = row["wait_s"]
        if row["put_off"]:
            self.sim.count("steps put off")
            text = "steps per second are limited"
            raise StepError(
                Limited(text, code="STEP_RATE", retry_after_s=wait_s, scope="steps_per_s")
            )
        if wait_s > 0:
            yield wait_s

    def _turn_is_over(self, row: dict[str, Any], run: StoredRun) -> bool:
        turn_at = run.state.turn_at
        if not row["crowded"] or turn_at is None:
            return False
        return (self.clock() - turn_at).total_seconds() >= self.sim.turn_s

    def _run_step(self, task: Task, held: Held, ctx: StepContext) -> Code:
        if ctx.run.state.cancel_requested:
            return StepDone(StepCancelled(), ctx.started_at)
        if held.stop_asked():
            return self._stopped(held, ctx)
        limit_s = self.sim.step_limit_s
        if (deadline := ctx.run.state.limits.deadline) is not None:
            limit_s = max(0.0, min(limit_s, (deadline - ctx.started_at).total_seconds()))
        held.in_step = True
        self.world.at(limit_s, self._time_over, held, held.claim_id)
        try:
            result = yield from run_step_kind(ctx)
        except CancelAsked:
            return self._stopped(held, ctx)
        except Interrupted as error:
            if error.why == "timeout":
                raise StepError.timeout(limit_s) from error
            return self._stopped(held, ctx)
        return StepDone(result, ctx.started_at)

    def _time_over(self, held: Held, claim_id: UUID) -> None:
        if held.in_step and held.claim_id == claim_id and held.task.proc.alive:
            self._interrupt(held, "timeout")

    def _stopped(self, held: Held, ctx: StepContext) -> Input:
        if held.release_asked and not held.cancel_requested:
            return Released("the worker stops")
        return StepDone(StepCancelled(), ctx.started_at)

    # apply.settle

    def _settle(
        self,
        task: Task,
        run: StoredRun,
        inputs: Sequence[Input],
        record: StepRecord,
        keep: NextClaim | None,
    ) -> Code:
        sim, store = self.sim, self.store
        assert run.claim_id is not None
        owner = Ownership(run.fence, run.claim_id, self.proc.id)
        now, give_up, pause_s = self.clock(), self.world.s + 60.0, 0.05
        while True:
            transition = sim.advance(run.state, inputs, now)
            write = Write(run, transition, now, record, keep, snapshot_every=sim.snapshot_every)
            try:
                (applied,) = yield self.pg(lambda write=write: store.apply([write]))
                if applied is not None:
                    return applied
                if sim.mutate == "reread":
                    sim.audit.lost(run.id, task, owner.fence, transition.state.version)
                    raise LostOwnership("dropped")
                row = yield self.pg(lambda run_id=run.id: store.read_run(run_id))
            except DatabaseUnavailable:
                if self.world.s > give_up:
                    raise
                yield pause_s * (0.5 + self.world.rng.random())
                pause_s = min(2.0, pause_s * 2)
                continue
            fresh = run_from_row(row)
            if not fresh.owned_by(owner):
                if arrived(fresh, owner, transition, keep) and sim.mutate != "readback":
                    return Applied(fresh, transition, 0, now)
                sim.audit.lost(run.id, task, owner.fence, transition.state.version)
                raise LostOwnership("another claim owns the run", run_id=str(run.id))
            run = fresh

    # heartbeat.beat, renew_leases, give_back

    def _heartbeats(self, task: Task) -> Code:
        del task
        rng = self.world.rng
        while True:
            with suppress(DatabaseUnavailable):
                yield from self._beat()
            yield self.sim.renew_s * (0.9 + 0.2 * rng.random())

    def _beat(self) -> Code:
        claims = [h.claim_id for h in self.held.values()]
        age_s, self.queue_age_s = self.queue_age_s, 0.0
        rows = yield Call(
            self.sim.postgres,
            lambda: self.store.heartbeat(self.proc.id, claims, age_s, 2 * self.sim.renew_s),
            heartbeat_timeout_s(2.0, self.sim.lease_s),
        )
        own = [row for row in rows if row["run_id"] is None]
        if not own:
            yield from self._register()
        for row in own:
            self.set_clock(row["now"])
        for row in rows:
            if row["run_id"] is None:
                continue
            if row["cancel_requested"] and row["run_id"] in self.held:
                self._request_cancel(row["run_id"])
            elif row["run_id"] not in self.held and self.sim.mutate != "give_back":
                yield from self._give_back(row["run_id"], row["claim_id"])

    def _give_back(self, run_id: UUID, claim_id: UUID) -> Code:
        row = yield self.pg(lambda: self.store.read_run(run_id))
        run = run_from_row(row)
        if run.claim_id != claim_id or run_id in self.held:
            return
        now = self.clock()
        transition = self.sim.advance(run.state, [Released("claim without a worker")], now)
        write = Write(run, transition, now)

        def work() -> Applied | None:
            (applied,) = self.store.apply([write])
            return applied

        applied = yield self.pg(work)
        if applied is not None and applied.should_ring:
            self.sim.count("claim given back")
            self.bus.ring(self.proc, run_id, run.version, run.bell_queue)

    def _renewals(self, task: Task) -> Code:
        del task
        rng = self.world.rng
        while True:
            yield self.sim.renew_s * (0.9 + 0.2 * rng.random())
            held = [(h.run_id, h.lease) for h in self.held.values() if h.leased]
            if not held:
                continue
            try:
                _, vanished = yield self.redis(lambda held=held: self.bus.renew(held))
                for run_id in vanished:
                    yield from self._set_again(run_id)
            except RedisGone:
                continue

    def _set_again(self, run_id: UUID) -> Code:
        holding = self.held.get(run_id)
        if holding is None or not holding.leased:
            return
        yield self.redis(lambda: self.bus.take(run_id, holding.lease))
        if self.held.get(run_id) is not holding:
            yield self.redis(lambda: self.bus.release(run_id, holding.lease))
