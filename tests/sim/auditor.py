"""What must hold, watched from outside the store: a ghost ledger that no mechanism reads.

The store calls `claimed`, `committing`, `committed`, `intended` … inside the transaction; workers
and tools tell what they really did. The ghost owner of a run is the task that took the last claim
which Postgres still remembers: it sits in the row (column `ghost`), so that a crash of Postgres
that forgets a claim forgets its owner too. No statement compares it.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import zstandard

from harness_common.core import events as ev
from harness_common.core.inputs import Input, PauseRequested, ResumeRequested, Steered
from harness_common.core.phase import phase, shown_status, turn_state
from harness_common.core.replay import fold, initial_content
from harness_common.core.run import TERMINAL, RunState, Status, content
from harness_common.store import json_codec
from harness_common.store.rows import run_from_row
from tests.sim.talk import Talk
from tests.sim.world import EPOCH, US, Process, Server, Task, Violation, World

if TYPE_CHECKING:
    from tests.sim.store import Store
    from tests.sim.tables import Row

_TERMINAL = {str(s) for s in TERMINAL}
_RESTING = {"waiting_approval", "waiting_input", "paused"}
_CALL_ENDS = {"succeeded", "failed", "cancelled", "rejected", "unknown"}
_EPOCH_S = EPOCH.timestamp()


class Auditor:
    """The ghost ledger of one seed."""

    def __init__(self, world: World, *, lease_s: float) -> None:
        self.world, self.lease_s = world, lease_s
        self.store: Store
        self.postgres: Server
        self.processes: dict[UUID, Process] = {}
        self.beats: dict[UUID, int] = {}
        self.authorised: Counter[tuple[UUID, int, int]] = Counter()
        self.effects: Counter[tuple[UUID, int, int]] = Counter()
        self.approved: Counter[tuple[UUID, int, int]] = Counter()
        self.cancelled: set[UUID] = set()
        self.not_before: dict[UUID, float] = {}
        self.moved_at: dict[UUID, int] = {}
        self.acked: dict[UUID, int] = {}
        self.last_commit: dict[UUID, tuple[int, int, int]] = {}
        """Who committed a run's last step result: task, fence it saw, version it made."""
        self.active: dict[int, UUID] = {}
        """Tasks that hold a run now, by task id."""
        self.turn_began: dict[UUID, int] = {}
        self.used: Counter[UUID] = Counter()
        """Microseconds of turns that have ended, by tenant."""
        self.resting: set[UUID] = set()
        """Runs that were asked to pause, and not to go on."""
        self.steered: dict[UUID, list[str]] = {}
        self.held_at_death: dict[UUID, list[UUID]] = {}
        self.forsaken_since: dict[UUID, tuple[int, int]] = {}
        self.happened: Counter[str] = Counter()
        self.limit = 0
        self.at_death: Callable[[], None] = lambda: None
        """What begins when a worker is declared dead."""
        self.at_intent: Callable[[UUID], None] | None = None
        """What somebody asks right after the next intent."""
        self.at_claim: Callable[[Process], None] | None = None
        """What strikes right after the next claim."""
        self.steps = 0
        self.checks: Counter[str] = Counter()

    def must(self, holds: bool, name: str, text: str) -> None:
        """Count one check of an invariant; end the seed where it does not hold."""
        self.checks[name] += 1
        if not holds:
            raise Violation(name, text)

    def moved(self, run_id: UUID) -> None:
        self.moved_at[run_id] = self.world.now

    # Called by the store

    def started(self, row: Row) -> None:
        """A run was accepted."""
        row["ghost"] = 0
        self.moved(row["id"])
        if row["parent_run_id"] is not None:
            call = (row["parent_run_id"], row["parent_step"], row["parent_idx"])
            twins = [
                r
                for r in self.store.runs.values()
                if (r["parent_run_id"], r["parent_step"], r["parent_idx"]) == call
            ]
            if len(twins) > 1:
                raise Violation("children", f"{len(twins)} children of call {call[1]}.{call[2]}")
        if row["status"] == "running":
            self.turn_began[row["id"]] = self.world.now
            self._admitted(row)
            self._slots()

    def asked(self, run_id: UUID, one: Input) -> None:
        """Somebody asked something of a run, and Postgres has it."""
        if isinstance(one, PauseRequested):
            self.resting.add(run_id)
        elif isinstance(one, ResumeRequested):
            self.resting.discard(run_id)
        elif isinstance(one, Steered):
            self.steered.setdefault(run_id, []).append(one.text)
        if self.world.trace is not None:
            self.world.log("pg     asked", name(run_id), type(one).__name__)

    def forsaken(self, children: list[UUID]) -> None:
        """A leader sees children that go on without their parent: it stops them in that tick, so
        that it does not see them for long.
        """
        now = self.world.now
        for child in children:
            since, n = self.forsaken_since.get(child, (now, 0))
            self.forsaken_since[child] = (since, n + 1)
            if n >= 8 and now - since > 3 * US:
                raise Violation("children", f"run {child} goes on without its parent")

    def ended(self, worker: UUID, held: list[UUID]) -> None:
        """A process was killed with this in hand."""
        self.held_at_death[worker] = held

    def _admitted(self, row: Row) -> None:
        """A run begins a turn: it is let go, its session's runs before it are over, its key has
        room.
        """
        prev, key, runs = row["prev_run_id"], row["concurrency_key"], self.store.runs
        while prev is not None and not row["turn"]:
            if runs[prev]["status"] not in _TERMINAL:
                raise Violation("sessions", f"run {row['id']} begins before {prev} has ended")
            prev = runs[prev]["prev_run_id"]
        if key is not None:
            n = sum(
                r["tenant_id"] == row["tenant_id"]
                and r["concurrency_key"] == key
                and r["status"] == "running"
                for r in runs.values()
            )
            if n > row["concurrency_max"]:
                raise Violation("INV13", f"{n} runs of key {key}")

    def claimed(self, row: Row, caller: Task | None) -> None:
        run_id = row["id"]
        if not (row["status"] == "running"):
            raise Violation("INV6", f"run {run_id} claimed while {row['status']}")
        if run_id in self.resting:
            raise Violation("pause", f"run {run_id} is claimed, and was asked to pause")
        worker = self.store.workers.get(row["claimed_by"])
        if row["deaths"] >= 2 and (worker is None or worker["concurrency"] != 1):
            raise Violation("INV15", f"the suspect {run_id} is not claimed alone")
        row["ghost"] = caller.id if caller else 0
        self.moved(run_id)
        if self.at_claim is not None and caller is not None:
            self.world.at(0.05 * self.world.rng.random(), self.at_claim, caller.proc)
            self.at_claim = None
        if self.world.trace is not None:
            self.world.log("pg     claim", name(run_id), "v", row["version"], "f", row["fence"])

    def committing(self, row: Row, t: Row, caller: Task | None) -> None:
        """A commit was accepted and is about to be written."""
        run_id, me = row["id"], caller.id if caller else 0
        if not (row["status"] not in _TERMINAL):
            raise Violation("INV4", f"run {run_id} ended and moves on")
        if t["committed_by"] is not None:
            if not (row["ghost"] == me):
                raise Violation(
                    "INV6",
                    f"task {me} commits step {t['step']} of run {run_id}, "
                    f"which task {row['ghost']} owns",
                )
            if t["step"] - row["step"] not in (0, 1):
                raise Violation("INV2", f"{row['step']} to {t['step']}")
        elif row["claim_id"] is not None and t["next_claim_id"] is None:
            self._taken(row)
        if row["cancel_requested"] and not t["cancel_requested"]:
            raise Violation("INV9", f"a commit takes back the cancel of run {run_id}")
        if t["stop_reason"] == "poisoned":
            self._poisoned(row)
        if row["status"] == "delayed" != t["status"] and str(t["status"]) not in _TERMINAL:
            due = self.not_before.get(run_id, 0.0)
            if not (self.world.s >= due):
                raise Violation("INV14", f"run {run_id} woken before {due}")

    def committed(self, row: Row, t: Row, caller: Task | None) -> None:
        """A commit is written."""
        run_id, me = row["id"], caller.id if caller else 0
        self.moved(run_id)
        if row["status"] == "delayed" and t["not_before"] is not None:
            until = (t["not_before"] - EPOCH).total_seconds()
            self.not_before[run_id] = max(self.not_before.get(run_id, 0.0), until)
        if t["committed_by"] is not None:
            self.last_commit[run_id] = (me, t["seen_fence"], row["version"])
            self.steps += t["checkpoint"] is not None
        if row["claim_id"] is None:
            row["ghost"] = 0
        if row["cancel_requested"]:
            self.cancelled.add(run_id)
        self._calls(run_id, t)
        ended = row["status"] in _TERMINAL
        written = t["events"] if not ended else self.store.events[run_id]
        ends = sum(e["type"] in ev.TERMINAL_EVENTS for e in written)
        if not (ends == int(ended)):
            raise Violation("INV4", f"{ends} terminal events of a run {row['status']}")
        if not (not ended or row["wake_at"] is None):
            raise Violation("INV4", "an ended run has an alarm")
        if t["new_claim"] and run_id in self.resting:
            raise Violation("pause", f"run {run_id} goes on, and was asked to pause")
        if t["slot_delta"]:
            self._turn(row, t)
        if self.world.trace is not None:
            self.world.log(
                "pg     commit", name(run_id), row["status"], "v", row["version"],
                "step", row["step"], *(e["type"] for e in t["events"]),
            )  # fmt: skip

    def _calls(self, run_id: UUID, t: Row) -> None:
        """Note what may have an effect, and the questions that nobody answered."""
        for p in t["proposed"]:
            if p["name"].startswith("write"):
                self.authorised[run_id, p["step"], p["idx"]] += 1
        for o in t["outcomes"]:
            if o["error_type"] == "INPUT_TIMEOUT":
                self.happened["questions expired"] += 1

    def _turn(self, row: Row, t: Row) -> None:
        """A turn begins or ends."""
        run_id = row["id"]
        if t["slot_delta"] > 0:
            self.turn_began[run_id] = self.world.now
            self._admitted(row)
        else:
            self.used[row["tenant_id"]] += self.world.now - self.turn_began.pop(run_id)
        self._slots()

    def _poisoned(self, row: Row) -> None:
        """A verdict stands on a death that was the run's own: alone, in a process for one."""
        self.happened["poisoned"] += 1
        worker = self.store.workers[row["claimed_by"]]
        held = self.held_at_death.get(row["claimed_by"], [])
        if worker["concurrency"] != 1 or any(one != row["id"] for one in held):
            raise Violation("INV15", f"run {row['id']} is condemned for a death in company")

    def _slots(self) -> None:
        """Slots equal running runs, and are never above a limit; turns are charged as they were."""
        running: Counter[UUID] = Counter()
        began_s: Counter[UUID] = Counter()
        for r in self.store.runs.values():
            if r["status"] == "running":
                running[r["tenant_id"]] += 1
                began_s[r["tenant_id"]] += _EPOCH_S + self.turn_began[r["id"]] / US  # type: ignore[assignment]
        for tenant_id, slot in self.store.slots.items():
            n = running[tenant_id]
            if slot["running"] != n:
                raise Violation("INV13", f"{slot['running']} slots for {n} running runs")
            if n > slot["max_running"]:
                raise Violation("INV13", f"{n} of {slot['max_running']} slots")
            if abs(slot["used_s"] - self.used[tenant_id] / US) > 0.001:
                raise Violation("turns", f"{slot['used_s']} slot-seconds are charged")
            if abs(slot["turn_sum"] - began_s[tenant_id]) > 0.01:
                raise Violation("turns", f"turns began at {slot['turn_sum']} in sum")
        total = sum(running.values())
        if total > self.limit:
            raise Violation("INV13", f"{total} running of {self.limit} in all")

    def intended(self, row: Row, p: Row, caller: Task | None) -> None:
        run_id, me = row["id"], caller.id if caller else 0
        if not (run_id not in self.cancelled):
            raise Violation("INV9", f"an intent of run {run_id} after a cancel")
        if not (row["ghost"] == me):
            raise Violation("INV6", f"task {me} intends; task {row['ghost']} owns")
        self.moved(run_id)
        if self.at_intent is not None:
            self.world.at(0.0, self.at_intent, run_id)
            self.at_intent = None
        self.world.log("pg     intent", name(run_id), f"{p['step']}.{p['idx']}")

    def beat(self, worker: UUID) -> None:
        self.beats[worker] = self.world.now

    def forgotten(self, worker: UUID, seen_at: datetime) -> None:
        """A crash of Postgres forgot a heartbeat: what it cannot know is no breach."""
        self.beats[worker] = int((seen_at - EPOCH).total_seconds() * US)

    def condemned(self, worker: UUID, why: str) -> None:
        """A worker was declared dead: never one that lives, is heard and is connected (INV7)."""
        self.at_death()
        self.world.log("pg     worker", self.processes[worker].name, "declared dead:", why)
        proc, now, lease = self.processes[worker], self.world.now, int(self.lease_s * US)
        if self._well(worker):
            raise Violation("INV7", f"{proc.name} is well and was declared dead: {why}")
        # While Postgres was away nobody could be heard: silence says nothing for a whole lease. An
        # outage of less than half a lease leaves time for another heartbeat.
        back_at, long = self.postgres.down_until, lease // 2
        silenced = back_at > now - lease and back_at - self.postgres.down_from > long
        never_cut = max(proc.last_cut.get("postgres", -1), proc.thawed_at) < now - 2 * lease
        if proc.alive and silenced and never_cut and why.startswith("no heartbeat"):
            ago_s = (now - back_at) / US
            raise Violation("INV7", f"{proc.name} condemned {ago_s:.1f} s after Postgres came back")

    def deposed_wrote(self, term: int) -> None:
        if not (False):
            raise Violation("INV12", f"a scheduler of term {term} wrote after it was deposed")

    # Called by workers, tools and the workload

    def model_called(self, run_id: UUID, task: Task) -> None:
        """An owner calls its model. One that was frozen and replaced cannot know of a new limit."""
        if self.store.runs[run_id]["ghost"] != task.id:
            return
        due = self.not_before.get(run_id, 0.0)
        if not (self.world.s >= due):
            raise Violation("INV14", f"run {run_id} calls its model before {due}")

    def effect(self, run_id: UUID, step: int, idx: int, *, asks: bool = False) -> None:
        """A write's effect happened; one that `asks` needs a person's yes for each time."""
        key = (run_id, step, idx)
        self.effects[key] += 1
        self.world.log("effect", name(run_id), f"{step}.{idx}")
        if not (self.effects[key] <= self.authorised[key]):
            raise Violation(
                "INV3", f"effect {step}.{idx} of run {run_id} happened {self.effects[key]} times"
            )
        if asks and self.effects[key] > self.approved[key]:
            times = f"{self.effects[key]} times, was approved {self.approved[key]} times"
            raise Violation("INV19", f"effect {step}.{idx} of run {run_id} happened {times}")

    def acknowledged(self, run_id: UUID, version: int) -> None:
        """An owner heard that its commit arrived."""
        self.acked[run_id] = max(version, self.acked.get(run_id, 0))

    def lost(self, run_id: UUID, task: Task, fence: int, version: int) -> None:
        """An owner gave up a finished step: only if it is not the owner any more (INV20, INV10)."""
        row = self.store.runs[run_id]
        if not (row["ghost"] != task.id):
            raise Violation("INV20", f"task {task.id} drops a step of run {run_id} it owns")
        arrived = self.last_commit.get(run_id) == (task.id, fence, version)
        went_on = row["claim_id"] is not None or row["version"] != version
        if not (not arrived or went_on):
            raise Violation(
                "INV10", f"task {task.id} takes its commit of run {run_id} for lost, and it arrived"
            )

    def _taken(self, row: Row) -> None:
        """A claim is cleared by somebody else than its owner: only if that one is not well."""
        worker = self.active.get(row["ghost"])
        if worker is not None and self._well(worker):
            name_ = self.processes[worker].name
            raise Violation("INV20", f"run {row['id']} is taken from {name_}, which is well")

    def _well(self, worker: UUID) -> bool:
        """Tell whether a worker has lived, been heard and been connected for a whole lease."""
        proc, since = self.processes[worker], self.world.now - int(self.lease_s * US)
        return (
            proc.alive
            and proc.thawed_at < since
            and self.beats.get(worker, -1) > since
            and all(until < since for until in proc.last_cut.values())
        )

    # At the end

    def settled(self) -> bool:
        """Tell whether no run has anything more to do."""
        return all(r["status"] in _TERMINAL for r in self.store.runs.values())

    def stuck(self, since: int, bound_s: float) -> None:
        """Faults have stopped: every run that waits neither for a time nor for a person has moved
        lately (INV8).
        """
        now, bound = self.world.now, int(bound_s * US)
        latest = max(self.moved_at.values(), default=0)
        for run_id, r in self.store.runs.items():
            status = r["status"]
            if status in _TERMINAL or status in _RESTING:
                continue
            moved = latest if status == "queued" else self.moved_at[run_id]
            if status == "delayed":
                moved = max(moved, int(self.not_before.get(run_id, 0.0) * US))
            if status == "waiting_children":
                moved = self._joins_at(run_id, r)
            quiet = now - max(moved, since)
            busy = r["ghost"] in self.active
            if not (quiet <= bound or (busy and quiet <= 3 * bound)):
                raise Violation(
                    "INV8",
                    f"run {run_id} {status}, claimed {r['claim_id'] is not None}: "
                    f"still for {quiet / US:.1f} s",
                )

    def _joins_at(self, run_id: UUID, row: Row) -> int:
        """Return when the last child that a run waits for ended; now while one goes on."""
        ends = [
            c["finished_at"]
            for c in self.store.runs.values()
            if c["parent_run_id"] == run_id and c["parent_step"] == row["step"] + 1
        ]
        return self.world.now if None in ends else max(map(_us, ends), default=0)

    def check_end(self) -> None:
        """Compare what is stored with what the record of it says."""
        store = self.store
        for run_id, row in store.runs.items():
            state = run_from_row(row).state
            if not (row["version"] >= self.acked.get(run_id, 0)):
                raise Violation("INV1", f"run {run_id} lost a commit")
            events = store.events[run_id]
            if not ([e["seq"] for e in events] == list(range(1, row["next_seq"]))):
                raise Violation("INV5", "a gap")
            steps = store.checkpoints[run_id]
            if not (list(steps) == list(range(1, row["step"] + 1))):
                raise Violation("INV2", f"steps {[*steps]}")
            if not (len(store.messages[run_id]) == row["messages"]):
                raise Violation("INV2", "messages and their count")
            if row["step"]:
                self._check_fold(state, steps, len(self.steered.get(run_id, ())))
            if not (run_id not in self.cancelled or state.status in TERMINAL):
                raise Violation("INV9", "a cancel was lost")
            if not (run_id not in self.cancelled or state.status is not Status.SUCCEEDED):
                raise Violation("INV9", f"run {run_id} succeeded after its cancel")
            phase(state), turn_state(state), shown_status(state)
            open_calls = [
                c["status"]
                for (owner, _), calls in store.calls.items()
                for c in calls
                if owner == run_id and c["status"] not in _CALL_ENDS
            ]
            if state.status in TERMINAL and open_calls:
                raise Violation("INV3", f"run {run_id} ended with calls {open_calls}")
            Talk(store, row, self.steered.get(run_id, [])).check()

    def _check_fold(self, state: RunState, steps: dict[int, Row], told: int) -> None:
        folded = initial_content()
        for step, one in steps.items():
            folded = fold(folded, [one["delta"]])
            if one["snapshot"] is not None:
                raw = zstandard.decompress(base64.b64decode(one["snapshot"]))
                if not (json_codec.loads(raw) == folded):
                    raise Violation("fold", f"snapshot {step} is not its deltas")
        now = content(state)
        if folded != now:
            # What people have said since the last checkpoint belongs to the next one.
            since = now["messages"] - folded["messages"]
            said = 0 <= since <= told and told
            if not said or any(folded[k] != now[k] for k in now.keys() - {"messages", "memo"}):
                raise Violation("fold", "the deltas do not give the run's content")


def _us(at: datetime) -> int:
    return int((at - EPOCH).total_seconds() * US)


def name(run_id: UUID) -> str:
    """Name a run briefly in the trace."""
    return f"run-{run_id.hex[:4]}"
