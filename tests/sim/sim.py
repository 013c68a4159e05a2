"""One seed: a small platform, its workload, its faults and its auditor, from the first submission
until nothing is left to do.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from harness_common.core.budget import Limits
from harness_common.core.inputs import Input
from harness_common.core.retry import RetryRule
from harness_common.core.rules import advance
from harness_common.core.run import TERMINAL, RunState, Transition
from harness_common.settings import SchedulerSettings
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.rows import StoredRun
from tests.sim import api
from tests.sim.approvals import Verdict
from tests.sim.auditor import Auditor
from tests.sim.bus import Bus
from tests.sim.faults import Faults, next_name
from tests.sim.quarantine import Quarantine
from tests.sim.scheduler import Scheduler
from tests.sim.store import Store
from tests.sim.tables import QUEUE, Row, first_slot
from tests.sim.worker import Worker
from tests.sim.workload import Act, Plan, make_plan
from tests.sim.world import US, Call, Code, Process, RedisGone, Server, Task, Violation, World

LATEST_S: Final = 240.0
RETRY: Final = RetryRule(max_attempts=4, base_s=0.2, factor=2.0, max_s=2.0)


@dataclass(slots=True)
class Result:
    """What one seed did."""

    seed: int
    violation: Violation | None
    runs: int
    steps: int
    events: int
    virtual_s: float
    digest: int
    faults: Counter[str]
    pairs: Counter[tuple[str, str]]
    counts: Counter[str]
    checks: Counter[str]
    trace: Sequence[str]


class Sim:
    """The platform of one seed."""

    lease_s = 3.0
    renew_s = 1.0
    step_limit_s = 20.0
    inline_s = 5.0
    turn_s = 0.5
    tick_s = 0.5
    idle_tick_s = 1.0
    leader_ttl_s = 4.0
    ring_after_s = 5.0
    ring_after_max_s = 10.0
    snapshot_every = 4
    terminal = TERMINAL

    def __init__(self, seed: int, *, mutate: str = "", keep_trace: int = 0) -> None:
        self.seed, self.mutate = seed, mutate
        self.world = world = World(seed, keep_trace=keep_trace)
        self.rng = world.rng
        self.audit = Auditor(world, lease_s=self.lease_s)
        self.store = self.audit.store = Store(world, self.audit, mutate)
        self.postgres = Server("postgres", lambda: DatabaseUnavailable("no answer"))
        self.redis = Server("redis", lambda: RedisGone("no answer"))
        self.bus = Bus(world, self.redis, self.lease_s)
        self.store.minted = self.bus.mint
        self.bus.one_queue = mutate == "suspect"
        self.audit.postgres = self.postgres
        self.audit.at_death = self._died
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.counts: Counter[str] = self.audit.happened
        self.plans: dict[UUID, Plan] = {}
        self.attempts: Counter[tuple[UUID, int]] = Counter()
        self.flips: Counter[tuple[UUID, int]] = Counter()
        self.killed: Counter[UUID] = Counter()
        self.heads: dict[UUID, UUID] = {}
        """The newest run of each tenant's session."""
        self.steps_per_task = self.rng.choice((1, 1, 3))
        self.people = 0
        """Requests that somebody has still to make."""
        self.workers: list[Worker] = []
        self.schedulers: list[Scheduler] = []
        self.api = Process("api", world.uuid())
        self.quarantine = Quarantine(self)
        self.faults = Faults(self)
        self._people()
        self._fleet()

    def _died(self) -> None:
        self.quarantine.watch()

    def _people(self) -> None:
        """Two tenants with little room, and what they submit."""
        rng, world = self.rng, self.world
        tenants = [world.uuid(), world.uuid()]
        self.audit.limit = rng.choice((2, 3, 6))
        self.scheduler_settings = SchedulerSettings(max_running=self.audit.limit)
        for tenant_id in tenants:
            slot = self.store.slots[tenant_id] = first_slot(tenant_id, rng.choice((1, 2, 4)))
            if rng.random() < 0.1:
                slot["steps_per_s"] = rng.choice((2.0, 5.0))
            if rng.random() < 0.1:
                slot["starts_per_s"] = 1.0
        left = 3 if rng.random() < 0.9 else 4
        while left > 0:
            plan = make_plan(rng, self.faults.until_s)
            left -= plan.runs
            tenant_id, run_id = tenants[rng.random() < 0.3], world.uuid()
            self.plans[run_id] = plan
            self.people += 1
            world.at(plan.starts_s, self._submit, tenant_id, run_id, plan)

    def _fleet(self) -> None:
        for n in range(2 if self.rng.random() < 0.85 else 3):
            self.add_worker(f"worker-{n}")
        for n in range(1 if self.rng.random() < 0.6 and not self.faults.needs_standby else 2):
            self.add_scheduler(f"scheduler-{n}")
        self.world.at(0.5, self._watch)

    def add_worker(
        self, name: str, concurrency: int = 0, queues: Sequence[str] = (QUEUE,)
    ) -> Worker:
        """Start a worker process; without `concurrency` it has as much as the dice say."""
        proc = Process(name, self.world.uuid())
        self.audit.processes[proc.id] = proc
        worker = Worker(self, proc, concurrency or self.rng.choice((200, 200, 200, 2, 1)), queues)
        self.workers.append(worker)
        worker.start()
        return worker

    def _follow(self, name: str) -> None:
        self.add_worker(name)

    def replace_worker(self, worker: Worker) -> None:
        """Let another process take the place of one that ended; the quarantine has its own way."""
        if not worker.alone:
            pause_s = 0.3 + self.rng.random()
            self.world.at(pause_s, self._follow, next_name(worker.proc.name))

    def add_scheduler(self, name: str) -> None:
        self.schedulers.append(Scheduler(self, Process(name, self.world.uuid())))

    # What the others share

    def advance(self, state: RunState, inputs: Sequence[Input], now: datetime) -> Transition:
        """The product's rules, counted."""
        status = str(state.status)
        for one in inputs:
            self.pairs[status, type(one).__name__] += 1
            status = "queued"  # the only input that another follows is TimerDue
        return advance(state, inputs, now)

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def flip(self, run_id: UUID, index: int) -> bool:
        """Tell whether a flaky tool fails this time: it does every other time."""
        self.flips[run_id, index] += 1
        return self.flips[run_id, index] % 2 == 1

    def kills(self, run_id: UUID, times: int) -> bool:
        """Tell whether a killing tool kills this time."""
        self.killed[run_id] += 1
        return self.killed[run_id] <= times

    # The API: commands.start_run, commands.control, commands.effects

    def _submit(self, tenant_id: UUID, run_id: UUID, plan: Plan) -> None:
        self.world.spawn(self.api, self._post_run, tenant_id, run_id, plan)
        self.people -= 1
        for s, act in plan.acts:
            self.people += 1
            self.world.at(s - self.world.s, self.ask, run_id, act)

    def _post_run(self, task: Task, tenant_id: UUID, run_id: UUID, plan: Plan) -> Code:
        del task
        version, ready = 0, False
        while True:
            try:
                version, ready = yield Call(
                    self.postgres, lambda: self._start_run(tenant_id, run_id, plan), 2.0
                )
                break
            except DatabaseUnavailable:
                yield 0.5
        if not ready:
            self.bus.nudge(self.api)
        elif self.rng.random() < self.faults.api_forgets:
            self.world.faults["api died before the bell"] += 1
        else:
            self.bus.ring(self.api, run_id, version)

    def _start_run(self, tenant_id: UUID, run_id: UUID, plan: Plan) -> tuple[int, bool]:
        if run_id in self.store.runs:
            return 0, False
        deadline = None
        if plan.deadline_s is not None:
            deadline = self.world.time() + timedelta(seconds=plan.deadline_s)
        limits = Limits(plan.max_turns, plan.max_tokens, None, deadline)
        behind = self.heads.get(tenant_id) if plan.behind else None
        self.heads[tenant_id] = run_id
        row = api.start(
            self.store, self.advance, tenant_id, run_id, api.Start(limits, RETRY, behind, plan.key)
        )
        if row["held_for"] is not None:
            self.count("held runs")
        self.world.log("pg     start", run_id.hex[:4], row["status"], row["held_for"] or "")
        return row["version"], row["status"] == "running"

    def start_child(self, run: StoredRun, step: int, index: int) -> tuple[int, bool, Row]:
        """Start the child of a call, unless another attempt was first."""
        twin = None if self.mutate == "child" else self.store.child(run.id, step, index)
        if twin is not None:
            return twin["version"], False, twin
        plan = self.plans[run.id].turn(run.state.turn - 1).calls[index].child
        assert plan is not None
        child_id = self.world.uuid()
        self.plans[child_id] = plan
        asked = api.Start(
            Limits(plan.max_turns), RETRY, parent=api.Parent(run.id, step, index, run.depth + 1)
        )
        row = api.start(self.store, self.advance, run.tenant_id, child_id, asked)
        self.count("children started")
        self.world.log("pg     child", child_id.hex[:4], "of", run.id.hex[:4], row["status"])
        return row["version"], row["status"] == "running", row

    def ask(self, run_id: UUID, act: Act) -> None:
        """Let a person ask something of a run."""
        self.world.spawn(self.api, self._post_ask, run_id, act)

    def _post_ask(self, task: Task, run_id: UUID, act: Act) -> Code:
        del task
        for _ in range(5):
            try:
                worker = yield Call(self.postgres, lambda: self._act(run_id, act), 2.0)
            except DatabaseUnavailable:
                yield 0.3
                continue
            if worker is not None and act == "cancel":
                self.bus.signal_cancel(self.api, worker, run_id)
            else:
                self.bus.nudge(self.api)
            break
        self.people -= 1

    def _act(self, run_id: UUID, act: Act) -> UUID | None:
        """Do what a person asks; return who works on the run."""
        if run_id not in self.store.runs:
            return None
        n = self.counts["asked"] = self.counts["asked"] + 1
        done = False
        match act:
            case "steer":
                done = api.steer(self.store, self.advance, run_id, f"say {n}") is not None
            case "answer":
                done = api.answer(self.store, self.advance, run_id, f"answer {n}") is not None
            case "resolve":
                outcome: api.Outcome = self.rng.choice(("succeeded", "failed", "proposed"))
                done = api.resolve(self.store, self.advance, run_id, outcome)
            case "decide":
                verdict: Verdict = self.rng.choice(("approved", "approved", "denied"))
                nth = self.rng.randrange(4)
                done = api.decide(self.store, self.advance, run_id, verdict, nth)
            case "cancel" | "pause" | "resume":
                ask = {"cancel": api.cancel, "pause": api.pause, "resume": api.resume}[act]
                done = ask(self.store, self.advance, run_id) is not None
        if done:
            self.count(act)
        owner: UUID | None = self.store.runs[run_id]["claimed_by"]
        return owner

    def _take_care(self) -> None:
        """People come back to what waits for them, once the faults have stopped."""
        for row in self.store.runs.values():
            act: Act | None = None
            if row["status"] == "paused" or row["pause_requested"]:
                act = "resume"
            elif row["status"] == "waiting_input":
                act = "answer"
            elif any(a["status"] == "pending" for a in self.store.approvals.get(row["id"], ())):
                act = "decide"
            elif row["status"] == "waiting_approval":
                act = "resolve"
            if act is not None:
                self.people += 1
                self.ask(row["id"], act)

    # The watch over the seed

    def _watch(self) -> None:
        """Look every half second whether something is stuck, or all is done."""
        world, audit = self.world, self.audit
        calm = world.now - int(self.faults.until_s * US)
        if calm > 0:
            audit.stuck(int(self.faults.until_s * US), self._bound_s)
            self._take_care()
        if len(self.store.runs) == len(self.plans) and audit.settled():
            held = any(w.held for w in self.workers if w.proc.alive)
            if not (held or world.flying or self.people):
                world.ended = True
                return
        world.at(0.5, self._watch)

    @property
    def _bound_s(self) -> float:
        """INV8: two leases, 5 s, and the longest pause between two doorbells."""
        return 2 * self.lease_s + 5.0 + self.ring_after_max_s

    def run(self) -> Result:
        """Play the seed to its end."""
        violation: Violation | None = None
        try:
            self.world.run(LATEST_S)
            self.audit.must(self.world.ended, "INV8", f"not done after {LATEST_S:g} virtual s")
            self.audit.check_end()
        except Violation as found:
            violation = found
            self.world.log("VIOLATION", found)
        except Exception as error:
            error.add_note(f"in seed {self.seed} of the simulator")
            raise
        return Result(
            self.seed, violation, len(self.store.runs), self.audit.steps, self.world.events,
            self.world.s, self._digest(), self.world.faults, self.pairs, self.counts,
            self.audit.checks, tuple(self.world.trace or ()),
        )  # fmt: skip

    def _digest(self) -> int:
        """Sum up how the seed ended: equal for equal histories."""
        rows = [
            (r["id"].hex, r["status"], r["version"], r["step"], r["fence"], r["next_seq"])
            for r in self.store.runs.values()
        ]
        text = f"{self.world.now} {self.world.events} {rows} {sorted(self.world.faults.items())}"
        return zlib.crc32("\n".join([text, *(self.world.trace or ())]).encode())


def run_seed(seed: int, *, mutate: str = "", keep_trace: int = 0) -> Result:
    """Play one seed."""
    return Sim(seed, mutate=mutate, keep_trace=keep_trace).run()
