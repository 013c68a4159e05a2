"""The simulator's store against the real Postgres: the same random commands leave the same rows.

A command is played on both sides with the same ids and values, also from stale handles; what it
answers and what can be seen afterwards must be equal. So whatever the simulator proves about its
store holds for the SQL as far as these commands reach.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest

from harness_common.commands import (
    Parent,
    answer_run,
    cancel_run,
    pause_run,
    resume_run,
    steer_run,
)
from harness_common.core.errors import Conflict, IllegalTransition
from harness_common.core.inputs import (
    Admit,
    Input,
    Released,
    StepDone,
    StepFailed,
)
from harness_common.core.liveness import loss
from harness_common.core.message import loads
from harness_common.core.rules import advance
from harness_common.core.step import (
    CallOutcome,
    Failure,
    StepCancelled,
    StepResult,
    ToolsDone,
    ToolsUnknown,
    ToolsWaiting,
    Wait,
)
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.apply import apply
from harness_common.store.claim import Want, claim
from harness_common.store.db import Database
from harness_common.store.postgres import pg
from harness_common.store.rows import StoredRun, run_from_row
from harness_common.store.writes import NextClaim, StepRecord, Write
from harness_worker.scheduler.wake import inputs_when_due
from tests.sim import api
from tests.sim.store import Store
from tests.sim.tables import first_slot
from tests.sim.world import EPOCH, US, Violation, World
from tests.store.play import Play, make_tenant, say, sql

COMMANDS = 50
LONG = timedelta(hours=1)
NAMES = ("read", "write", "write")
CONCURRENCY = (1, 200)
RUN = (
    "status", "version", "step", "next_kind", "turn", "failures", "limited", "deaths", "messages",
    "started", "cancel_requested", "fence", "claim_id", "claimed_by", "committed_by",
    "last_input_n", "attempt", "rings", "next_seq", "stop_reason", "output", "input_tokens",
    "cost_usd", "not_before", "pause_requested", "waiting", "turn_at", "memo", "held_for",
    "concurrency_key", "parent_step", "parent_idx",
)  # fmt: skip
CALL = (
    "step", "idx", "name", "status", "attempt", "attempt_id", "result", "effect", "tool_version",
    "resume_at", "trust",
)  # fmt: skip


class Quiet:
    """An auditor that looks away: here Postgres itself is the judge."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Both:
    """One tenant on both sides."""

    def __init__(self, db: Database, tenant_id: UUID, rng: Random, mutate: str = "") -> None:
        self.db, self.tenant_id, self.rng = db, tenant_id, rng
        self.play = Play(db, tenant_id)
        self.world = World(0)
        self.store = Store(self.world, Quiet(), mutate)  # type: ignore[arg-type]
        self.store.slots[tenant_id] = first_slot(tenant_id, 2, 2)
        self.workers = [uuid4(), uuid4()]
        self.handles: list[StoredRun] = []
        """Runs as some owner saw them: the last of each is fresh, the others are stale."""
        self.attempts: list[dict[str, Any]] = []
        self.seen: set[str] = set()

    @property
    def runs(self) -> list[UUID]:
        return list(self.store.runs)

    async def now(self) -> None:
        """Set the simulated clock to Postgres time."""
        (row,) = await sql(self.db, "SELECT clock_timestamp() AS now")
        self.world.now = int((row["now"] - EPOCH).total_seconds() * US)

    # Commands

    async def begin(self) -> None:
        for n, worker in enumerate(self.workers):
            await self.db.fetch("worker_register", _worker(worker, n))
            self.store.worker_register(worker, f"w{n}", CONCURRENCY[n])
        await self.start()

    async def start(self) -> None:
        if len(self.runs) >= 4:
            return
        more: dict[str, Any] = {}
        asked = api.Start()
        if self.rng.random() < 0.3:
            more, asked = {"concurrency_key": "k"}, api.Start(key="k")
        parent = self._waiting_call()
        if parent is not None:
            more["parent"] = Parent(parent.run_id, parent.step, parent.index, 1)
            asked = replace(asked, parent=parent)
        run_id = await self.play.start(**more)
        state = (await self.play.read(run_id)).state
        asked = replace(asked, limits=state.limits, retry=state.retry)
        api.start(self.store, advance, self.tenant_id, run_id, asked)
        self.store.runs[run_id]["turn_at"] = state.turn_at

    def _waiting_call(self) -> api.Parent | None:
        """Find a call that waits for a child and has none."""
        for run_id, row in self.store.runs.items():
            if row["status"] == "waiting_children" and not self.store.child(
                run_id, row["step"] + 1, 0
            ):
                return api.Parent(run_id, row["step"] + 1, 0)
        return None

    async def claim(self) -> None:
        run_id, worker = self.rng.choice(self.runs), self.rng.choice(self.workers)
        run = await self.play.read(run_id)
        version = run.version - (self.rng.random() < 0.15)
        have = self.rng.randint(0, run.state.messages)
        claim_id = uuid4()
        want = Want(self.tenant_id, run_id, version, claim_id, have)
        (real,) = await claim(self.db, [want], worker=worker, hold_s=900)
        ours = self.store.claim(run_id, version, claim_id, have, worker, 900)
        assert (real is None) == (ours is None)
        if real is None or ours is None:
            return
        self.handles.append(real.run)
        assert list(real.messages) == [loads(m) for m in ours["new_messages"]]
        assert [_call(c) for c in real.calls] == [_call(c) for c in ours["calls"] or ()]

    def _inputs(self, run: StoredRun) -> list[Input]:
        """Draw what an owner may bring home."""
        rng = self.rng
        failures = (
            Failure("transient", "CUT", "cut"),
            Failure("limited", "429", "slow down", retry_after_s=3600.0),
            Failure("permanent", "NO", "no"),
        )
        if rng.random() < 0.1:
            return [StepFailed(rng.choices(failures, (6, 3, 1))[0], self.world.time(), 0.5)]
        if rng.random() < 0.05:
            return [Released("stops")]
        if rng.random() < 0.05:
            return [StepDone(StepCancelled(), self.world.time())]
        if run.state.next_kind == "model":
            tools = NAMES if rng.random() < 0.95 else ()
            return [StepDone(say(tools=tools), self.world.time())]
        done = tuple(_outcome(i) for i in range(len(NAMES)))
        until = self.world.time() + LONG
        waits = [
            replace(_outcome(0), status=CallStatus.RUNNING, content="", resume_at=w.until, wait=w)
            for w in (
                Wait(0, "time", until), Wait(0, "input", None, {"question": "?"}),
                Wait(0, "input", until, {"question": "?"}), Wait(0, "child", None, {}),
            )
        ]  # fmt: skip
        results: tuple[StepResult, ...] = (
            ToolsDone(done), ToolsUnknown(done[:1], (1,)),
            *(ToolsWaiting((one, *done[1:])) for one in waits),
        )  # fmt: skip
        over = rng.random() < 0.2
        return [StepDone(rng.choice(results), self.world.time(), turn_over=over)]

    async def settle(self) -> None:
        """Commit from a handle: a stale one as often as not."""
        if self.handles:
            run = self.handles[-1] if self.rng.random() < 0.7 else self.rng.choice(self.handles)
            record = StepRecord(self.world.time(), run.claimed_by or self.workers[0])
            keep = None
            if self.rng.random() < 0.3:
                keep = NextClaim(uuid4(), self.workers[0], 900)
            await self._write(run, self._inputs(run), record, keep)

    async def _write(
        self,
        run: StoredRun,
        inputs: list[Input],
        record: StepRecord | None = None,
        keep: NextClaim | None = None,
    ) -> None:
        now = self.world.time()
        try:
            transition = advance(run.state, inputs, now)
        except IllegalTransition:
            return
        write = Write(run, transition, now, record, keep, snapshot_every=2)
        async with self.db.connection() as conn:
            (real,) = await apply(conn, [write], timeout_s=5)
        (ours,) = self.store.apply([write])
        assert (real is None) == (ours is None)
        if real is None or ours is None:
            return
        assert (real.first_seq, real.should_ring) == (ours.first_seq, ours.should_ring)
        assert real.run == ours.run
        if real.run.claim_id is not None:
            self.handles.append(real.run)

    async def cancel(self) -> None:
        if self.rng.random() < 0.2:
            run_id = self.rng.choice(self.runs)
            await cancel_run(self.db, self.tenant_id, run_id, by="user")
            api.cancel(self.store, advance, run_id)

    async def control(self) -> None:
        """Pause, resume, answer or steer; what one side refuses the other refuses too."""
        run_id, db, tenant_id = self.rng.choice(self.runs), self.db, self.tenant_id
        what = self.rng.choice(("pause", "resume", "resume", "answer", "answer", "steer"))
        before = len(self.store.inputs[run_id])
        changed = False
        try:
            match what:
                case "pause":
                    changed = (await pause_run(db, tenant_id, run_id, by="user")).changed
                case "resume":
                    changed = (await resume_run(db, tenant_id, run_id, by="user")).changed
                case "answer":
                    asked = await answer_run(
                        db, tenant_id, run_id, text="yes", call=None, by="user"
                    )
                    changed = asked.changed
                case "steer":
                    asked = await steer_run(db, tenant_id, run_id, text="left", by="user")
                    changed = asked.changed
        except Conflict:
            changed = False
        if what in {"answer", "steer"}:
            text = {"answer": "yes", "steer": "left"}[what]
            getattr(api, what)(self.store, advance, run_id, text)
        else:
            getattr(api, what)(self.store, advance, run_id)
        assert changed == (len(self.store.inputs[run_id]) > before), what

    async def release(self) -> None:
        """Let go of what a concurrency key holds back."""
        params = {"tenant_id": UUID(int=0), "key": "", "keys": 200, "most": 500}
        (row,) = await self.db.fetch("release_keys", params)
        assert row["released"] == self.store.release_keys()

    async def pick(self) -> None:
        """Admit what is queued, or wake what is due."""
        name = self.rng.choice(("admit_pick", "wake_pick"))
        params: dict[str, Any] = {"tenant_id": self.tenant_id, "limit": 1}
        if name == "wake_pick":
            params["now"] = self.world.time()
            ours = self.store.wake_pick(self.tenant_id, 1, self.world.time())
        else:
            streams = [
                {
                    "tenant_id": self.tenant_id, "rank": 0, "queue": "steps.default",
                    "started": started, "room": 1, "queue_room": 1,
                }
                for started in (True, False)
            ]  # fmt: skip
            params = {"streams": json_codec.dumps_text(streams)}
            ours = self.store.admit_pick(streams)
        rows = await self.db.fetch(name, params | {"skipped": []})
        assert [r["id"] for r in rows] == [r["id"] for r in ours]
        for row, our in zip(rows, ours, strict=True):
            run = await self.play.read(row["id"])
            if name == "admit_pick":
                await self._write(run, [Admit()])
                continue
            assert row["children_done"] == our["children_done"]
            has_room = self.rng.random() < 0.8
            await self._write(run, inputs_when_due(row, self.world.time(), has_room))

    async def recover(self) -> None:
        """Find claims of dead workers, and clear one."""
        rows = await self.db.fetch("orphans", {"batch": 10, "skipped": []})
        ours = {r["id"]: r for r in self.store.orphans(10)}
        assert {r["id"] for r in rows} == set(ours)
        for row in rows[:1]:
            names = ("claim_id", "worker_name", "solo", "late")
            assert {n: row[n] for n in names} == {n: ours[row["id"]][n] for n in names}
            lost = loss(
                row["claimed_by"], row["worker_name"], row["died_why"],
                solo=row["solo"], late=row["late"],
            )  # fmt: skip
            await self._write(run_from_row(row), [lost])

    async def intend(self) -> None:
        if not self.handles:
            return
        run = self.handles[-1] if self.rng.random() < 0.7 else self.rng.choice(self.handles)
        step = run.state.step + 1
        rows = await self.play.calls(run.id)
        calls = [r for r in rows if r["step"] == step]
        if not calls:
            return
        row = self.rng.choice(calls)
        prior = row["attempt_id"] if self.rng.random() < 0.8 else uuid4()
        params = {
            "tenant_id": self.tenant_id, "run_id": run.id, "step": step, "idx": row["idx"],
            "version": run.version, "fence": run.fence, "claim_id": run.claim_id,
            "attempt_id": uuid4(), "prior_attempt_id": prior, "from_status": [row["status"]],
            "effect": "write", "tool_version": "1", "fingerprint": "f", "payload": "{}",
            "ran_arguments": None, "served_by": None,
            "policy": None,
            "approval_id": None, "approval_digest": None,
        }  # fmt: skip
        real = await self.db.fetch("call_intent", params)
        ours = self.store.call_intent(params)
        assert [r["attempt"] for r in real] == [r["attempt"] for r in ours]
        if real:
            self.attempts.append(params)

    async def close_call(self) -> None:
        """Record the result of an attempt, or give it up, also a second time."""
        if not self.attempts:
            return
        of = self.rng.choice(self.attempts)
        key = {k: of[k] for k in ("tenant_id", "run_id", "step", "idx", "attempt_id")}
        if self.rng.random() < 0.4:
            params = key | {"status": "unknown", "why": "gone"}
            real, ours = await self.db.fetch("call_give_up", params), None
            ours = self.store.call_give_up(params)
            assert bool(real) == bool(ours)
            return
        params = key | {
            "status": "succeeded", "result": "done", "error_type": None, "trust": "trusted",
            "artifacts": [], "duration_ms": 1.0, "cost_usd": 0.0, "resume_at": None,
            "evidence": "{}",
        }  # fmt: skip
        real = await self.db.fetch("call_result", params)
        assert real[0]["won"] == self.store.call_result(params)[0]["won"]

    async def beat(self) -> None:
        """A heartbeat that knows of some of its claims; old claims are taken for orphans."""
        worker = self.rng.choice(self.workers)
        claims = [h.claim_id for h in self.handles if h.claim_id and self.rng.random() < 0.5]
        after_s = self.rng.choice((-1.0, 3600.0))
        params = {
            "worker": worker, "held": 0, "claims": claims, "queue_age_s": 0.0, "sandbox": None,
            "orphan_after_s": after_s, "throttle_ends_after_s": 60.0,
        }  # fmt: skip
        real = await self.db.fetch("heartbeat", params)
        ours = self.store.heartbeat(worker, claims, 0.0, after_s)
        names = ("run_id", "cancel_requested", "condemned")
        assert _set(real, names) == _set(ours, names)

    async def die(self) -> None:
        worker = self.rng.choice(self.workers)
        silent_s = self.rng.choice((0.0, 3600.0))
        now = self.world.time()
        looked_at = self.rng.choice((None, None, now + LONG, now - 2 * LONG))
        params = {
            "worker": worker, "why": "test", "only_if_silent": looked_at is not None,
            "silent_s": silent_s, "looked_at": looked_at, "term": None,
        }  # fmt: skip
        real = await self.db.fetch("worker_died", params)
        assert real[0]["died"] == self.store.worker_died(worker, "test", looked_at, silent_s, None)

    async def hurry(self) -> None:
        """Let what waits be due: the one command that is no statement of the product."""
        await sql(
            self.db,
            "UPDATE runs SET wake_at = clock_timestamp() - interval '1 s', "
            "not_before = CASE WHEN not_before IS NOT NULL THEN cast(:t AS timestamptz) END "
            "WHERE wake_at IS NOT NULL AND tenant_id = :i",
            t=EPOCH,
            i=self.tenant_id,
        )
        for row in self.store.runs.values():
            if row["wake_at"] is not None:
                row["wake_at"] = self.world.time() - timedelta(seconds=1)
                row["not_before"] = EPOCH if row["not_before"] is not None else None

    async def ring(self) -> None:
        """Lead, then ring, or look later, with the right term or an old one."""
        lead = {"name": "scheduler", "holder": self.workers[0], "holder_name": "s", "ttl_s": 99.0}
        (row,) = await self.db.fetch("lead", lead)
        assert row["term"] == self.store.lead(self.workers[0], 99.0)
        term = row["term"] - (self.rng.random() < 0.2)
        times = {"first_s": 500.0, "longest_s": 5000.0}
        match self.rng.randrange(3):
            case 0:
                rows = await self.db.fetch("ring", {"term": term, "batch": 10, **times})
                ours = self.store.ring(term, 10, 500.0, 5000.0)
                assert _set(rows, ("id", "version", "rings")) == _set(
                    ours, ("id", "version", "rings")
                )
            case 1:
                rows = await self.db.fetch("ring_all", {"term": term})
                assert len(rows) == self.store.ring_all(term)
            case _:
                await self.db.fetch("overdue", {"again_s": 300.0, "term": term})
                self.store.overdue(300.0, term)

    # What can be seen

    async def compare(self) -> None:
        """Compare all that can be seen."""
        (look,) = await self.db.fetch("look", {"lease_s": 3600.0})
        ours = self.store.look(3600.0)
        for name in ("queued", "keyed", "stale", "orphaned", "ungranted", "forsaken", "capacity",
                     "granted"):  # fmt: skip
            assert look[name] == ours[name], name
        due, our_due = look["due_in_s"], ours["due_in_s"]
        assert (due is None) == (our_due is None)
        assert due is None or abs(due - our_due) < 5.0
        (slot,) = await sql(self.db, "SELECT running, used_s, turn_sum FROM tenant_slots")
        our_slot = self.store.slots[self.tenant_id]
        assert slot["running"] == our_slot["running"]
        assert abs(slot["turn_sum"] - our_slot["turn_sum"]) < 1.0
        assert abs(slot["used_s"] - our_slot["used_s"]) < 1.0
        seen = await self._rows("SELECT *, id AS run_id FROM runs")
        events = await self._rows("SELECT run_id, seq, type FROM events ORDER BY seq")
        steps = await self._rows("SELECT run_id, step, delta FROM checkpoints ORDER BY step")
        calls = await self._rows("SELECT * FROM tool_calls ORDER BY step, idx")
        for run_id, row in self.store.runs.items():
            (real,) = seen[run_id]
            assert {n: real[n] for n in RUN} == {n: row[n] for n in RUN}
            assert (real["wake_at"] is None) == (row["wake_at"] is None)
            our_events = [(e["seq"], e["type"]) for e in self.store.events[run_id]]
            assert [(e["seq"], e["type"]) for e in events[run_id]] == our_events
            our_steps = [(s, c["delta"]) for s, c in self.store.checkpoints[run_id].items()]
            assert [(c["step"], c["delta"]) for c in steps[run_id]] == our_steps
            our_calls = [c for k, v in self.store.calls.items() if k[0] == run_id for c in v]
            assert [{n: c[n] for n in CALL} for c in calls[run_id]] == [
                {n: c[n] for n in CALL} for c in our_calls
            ]

    async def _rows(self, statement: str) -> dict[UUID, list[dict[str, Any]]]:
        out: dict[UUID, list[dict[str, Any]]] = defaultdict(list)
        for row in await sql(self.db, statement):
            out[row["run_id"]].append(row)
        return out


def _outcome(index: int) -> CallOutcome:
    return CallOutcome(index, f"call_{index}", NAMES[index], CallStatus.SUCCEEDED, "ok")


def _worker(worker: UUID, n: int) -> dict[str, Any]:
    return {
        "worker": worker, "name": f"w{n}", "host": "h", "pid": 1, "queues": ["steps.default"],
        "concurrency": CONCURRENCY[n], "plugins": "[]",
        "version": "",
    }  # fmt: skip


def _call(row: dict[str, Any]) -> dict[str, Any]:
    names = (*CALL, "arguments", "tool_use_id")
    out = {n: row[n] for n in names}
    out["resume_at"] = row["resume_at"] is not None
    return out


def _set(rows: list[dict[str, Any]], names: tuple[str, ...]) -> set[tuple[Any, ...]]:
    return {tuple(r[n] for n in names) for r in rows}


EMPTY = (
    "tool_calls", "events", "checkpoints", "messages", "inputs", "runs", "sessions",
    "workers", "leader",
    "tenant_slots",
)  # fmt: skip


async def play_both(db: Database, seed: int, mutate: str = "") -> Both:
    """Play one sequence; raises `AssertionError` where the sides differ."""
    rng = Random(seed)
    async with db.connection() as conn:
        await pg(conn).execute("; ".join(f"DELETE FROM {table}" for table in EMPTY))
    tenant_id = await make_tenant(db, max_running=2, granted=2)
    both = Both(db, tenant_id, rng, mutate)
    commands: list[Callable[[], Awaitable[None]]] = [
        both.start, both.start, both.claim, both.claim, both.claim, both.claim, both.settle,
        both.settle, both.settle, both.settle, both.cancel, both.control, both.release, both.pick,
        both.pick, both.pick, both.recover, both.intend, both.intend, both.close_call, both.beat,
        both.die, both.hurry, both.ring,
    ]  # fmt: skip
    await both.now()
    await both.begin()
    for n in range(COMMANDS):
        command = rng.choice(commands)
        await both.now()
        try:
            await command()
            await both.compare()
            both.seen |= {row["status"] for row in both.store.runs.values()}
        except (AssertionError, Violation) as error:
            raise AssertionError(f"sequence {seed}, command {n}, {command.__name__}") from error
    return both


async def _play_many(db: Database, seeds: range, mutate: str = "") -> None:
    seen: set[str] = set()
    for seed in seeds:
        both = await play_both(db, seed, mutate)
        seen |= both.seen
    assert seen >= {
        "queued", "running", "delayed", "waiting_approval", "waiting_input", "waiting_children",
        "paused", "succeeded", "cancelled",
    }  # fmt: skip


async def test_the_simulated_store_does_what_postgres_does(db):
    await _play_many(db, range(30))


@pytest.mark.nightly
@pytest.mark.timeout(900)
async def test_the_simulated_store_does_what_postgres_does_at_length(db):
    await _play_many(db, range(100, 400))


@pytest.mark.parametrize("mutate", ["fence", "cas", "slots", "wait", "seq"])
async def test_a_store_that_differs_is_seen(db, mutate):
    with pytest.raises(AssertionError, match="sequence"):
        await _play_many(db, range(40), mutate)
