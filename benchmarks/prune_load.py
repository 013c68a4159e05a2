"""(o) Retention while steps are made: half of 100,000 runs are deleted while 200 steps/s are made.

The store's claim and commit are driven in-process at a steady pace, so that what retention does to
Postgres is seen and not what workers cost; retention is a process of its own. Turns with and
without retention alternate; a step is timed from when it was due to its commit.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

import psycopg
import uvloop

from benchmarks.load import Load, open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, percentile
from benchmarks.seed import seed
from benchmarks.stack import BenchFailed, Lab, Proc, Stack
from harness_common.batch import Batcher
from harness_common.core.inputs import StepDone
from harness_common.core.message import Message, Text
from harness_common.core.step import ModelAnswered
from harness_common.store.apply import group_commit, settle
from harness_common.store.claim import Want, claim
from harness_common.store.writes import Applied, StepRecord, Write

TITLE: Final = "half of 100,000 runs deleted while 200 steps/s are made"
_RATE: Final = 200
_RUNS: Final = 400
_WEEKS: Final = 16
_ANSWER: Final = ModelAnswered(Message("assistant", (Text("on"),)), "pause", "scripted/bench")


def run(stack: Stack, options: Options) -> Outcome:
    """Seed, and make steps in turns."""
    count, seconds, pairs = (4_000, 4.0, 1) if options.quick else (100_000, 15.0, 3)
    with stack.lab("prune") as lab:
        made = seed(lab.database_url, count, weeks=_WEEKS, say=lab.say)
        return uvloop.run(_measure(lab, made.runs, seconds, pairs))


@dataclass(slots=True)
class _Stepper:
    """Makes steps of some runs, in turn."""

    load: Load
    worker: UUID = field(default_factory=uuid4)
    ready: asyncio.Queue[tuple[UUID, int]] = field(default_factory=asyncio.Queue)
    ms: list[float] = field(default_factory=list)
    commits: Batcher[Write, Applied | None] | None = None

    async def prepare(self) -> None:
        """Start the runs."""
        await self.load.agent("many", scripted(90_000 // _RUNS))
        batch = await self.load.submit("many", _RUNS, "stepped")
        for bell in batch.bells:
            self.ready.put_nowait((bell.run_id, bell.version))
        self.commits = group_commit(self.load.db)

    async def step(self, due: float) -> None:
        """Claim a run, commit a step of it, and let it go."""
        assert self.commits is not None
        run_id, version = await self.ready.get()
        db = self.load.db
        want = Want(self.load.tenant_id, run_id, version, uuid4())
        (held,) = await claim(db, [want], worker=self.worker, hold_s=3600)
        if held is None:
            raise BenchFailed("a run could not be claimed")
        now: datetime = held.now
        record = StepRecord(now, self.worker)
        done = [StepDone(_ANSWER, now)]
        applied = await settle(db, self.commits, held.run, done, now=now, step=record)
        self.ms.append((time.perf_counter() - due) * 1000)
        self.ready.put_nowait((run_id, applied.run.version))

    async def turn(self, seconds: float) -> list[float]:
        """Make steps at the pace that is asked for; return how long each took."""
        self.ms = []
        tasks: set[asyncio.Task[None]] = set()
        begun = time.perf_counter()
        for number in range(int(seconds * _RATE)):
            due = begun + number / _RATE
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(self.step(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return self.ms


async def _measure(lab: Lab, seeded: int, seconds: float, pairs: int) -> Outcome:
    quiet: list[float] = []
    pruned: list[float] = []
    deleted, pruning_s = 0, 0.0
    async with open_load(lab) as load:
        stepper = _Stepper(load)
        _let_in(lab)
        await stepper.prepare()
        _set_ages(lab)
        await stepper.turn(min(3.0, seconds))  # warm
        for _ in range(pairs):
            quiet += await stepper.turn(seconds)
            before = await _seeded(load)
            process = _begin_retention(lab)
            begun = time.monotonic()
            try:
                pruned += await stepper.turn(seconds)
            finally:
                lab.check()
                lab.stop(process)
            pruning_s += time.monotonic() - begun
            deleted += before - await _seeded(load)
    return _outcome(quiet, pruned, deleted, pruning_s, seeded)


def _outcome(
    quiet: list[float], pruned: list[float], deleted: int, pruning_s: float, seeded: int
) -> Outcome:
    ratio = percentile(pruned, 99) / percentile(quiet, 99)
    measures = [
        Measure("a step, p99, while half is deleted, over without", ratio, "x", 2.0, "most"),
        Measure("a step, p99, without", percentile(quiet, 99), "ms"),
        Measure("a step, p99, while half is deleted", percentile(pruned, 99), "ms"),
        Measure("a step, p50, without", percentile(quiet, 50), "ms"),
        Measure("a step, p50, while half is deleted", percentile(pruned, 50), "ms"),
        Measure("runs deleted", deleted / pruning_s, "/s", note=f"{deleted:,} of {seeded:,}"),
    ]
    problems = [] if deleted else ["nothing was deleted meanwhile"]
    return Outcome(measures, {"steps": len(quiet) + len(pruned)}, problems)


def _begin_retention(lab: Lab) -> Proc:
    with psycopg.connect(lab.database_url, autocommit=True) as conn:
        conn.execute("DELETE FROM leader")
    process = lab.start("retention", "benchmarks.retention_process")
    lab.wait("retention", "SELECT count(*) >= 1 FROM leader")
    return process


def _let_in(lab: Lab) -> None:
    """Give the tenants their slots, which a scheduler would."""
    with psycopg.connect(lab.database_url, autocommit=True) as conn:
        conn.execute("UPDATE tenant_slots SET granted = max_running")


def _set_ages(lab: Lab) -> None:
    """Let half of what is seeded be past its age."""
    with psycopg.connect(lab.database_url, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO retention (tenant_id, runs_days, changed_by) "
            "SELECT tenant_id, %s, 'bench' FROM tenants",
            (_WEEKS * 7 // 2,),
        )


async def _seeded(load: Load) -> int:
    rows = await load.rows("SELECT count(*) AS n FROM runs WHERE created_by = 'key_seed'", ())
    return int(rows[0]["n"])
