"""(o) Retention while runs go on: half of 100,000 runs are deleted while 200 steps/s are made.

The same load twice, in turns: first without ages, then with ages that half of what is seeded is
past. A step is timed from the commit of the step before to its own, doorbell and queue included, by
Postgres time.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg

from benchmarks.load import Load, open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, percentile
from benchmarks.seed import seed
from benchmarks.stack import Lab, Stack
from harness_common.commands import StartRun, start_run

TITLE: Final = "half of 100,000 runs deleted while 200 steps/s run"
_STEPS: Final = 10
_RUNS_PER_S: Final = 20.0
_WEEKS: Final = 16
_GAPS: LiteralString = """
SELECT (extract(epoch FROM c.created_at - lag(c.created_at) OVER w) * 1000)::float8 AS ms,
       (extract(epoch FROM c.created_at - c.started_at) * 1000)::float8 AS own_ms
FROM runs r JOIN checkpoints c ON c.tenant_id = r.tenant_id AND c.run_id = r.id
WHERE r.created_by = %s WINDOW w AS (PARTITION BY c.run_id ORDER BY c.step)
"""


@dataclass(frozen=True, slots=True)
class Window:
    """What one turn gave."""

    gaps_ms: list[float]
    own_ms: list[float]
    seconds: float
    deleted: int
    left_due: int

    @property
    def steps_per_s(self) -> float:
        """Return the steps made in a second."""
        return len(self.own_ms) / self.seconds


def run(stack: Stack, options: Options) -> Outcome:
    """Seed, load, and load again while half is deleted."""
    count, seconds = (4_000, 8.0) if options.quick else (100_000, 60.0)
    with stack.lab("prune", {"HARNESS_LOG__LEVEL": "error"}) as lab:
        made = seed(lab.database_url, count, weeks=_WEEKS, say=lab.say)
        return asyncio.run(_measure(lab, made.runs, seconds))


async def _measure(lab: Lab, seeded: int, seconds: float) -> Outcome:
    async with open_load(lab) as load:
        await load.agent("ten", scripted(_STEPS))
        lab.start_workers(2)
        before = await _turn(load, "quiet", seconds)
        with psycopg.connect(lab.database_url, autocommit=True) as conn:
            conn.execute(
                "INSERT INTO retention (tenant_id, runs_days, changed_by) "
                "SELECT tenant_id, %s, 'bench' FROM tenants",
                (_WEEKS * 7 // 2,),
            )
        during = await _turn(load, "pruned", seconds)
    ratio = percentile(during.gaps_ms, 99) / percentile(before.gaps_ms, 99)
    problems = [] if during.deleted else ["nothing was deleted meanwhile"]
    measures = [
        Measure("a step, p99, while half is deleted, over before", ratio, "x", 2.0, "most"),
        Measure("a step, p99, before", percentile(before.gaps_ms, 99), "ms"),
        Measure("a step, p99, while half is deleted", percentile(during.gaps_ms, 99), "ms"),
        Measure("a step, p50, before", percentile(before.gaps_ms, 50), "ms"),
        Measure("a step, p50, while half is deleted", percentile(during.gaps_ms, 50), "ms"),
        Measure("claim to commit, p99, before", percentile(before.own_ms, 99), "ms"),
        Measure("claim to commit, p99, while half is deleted", percentile(during.own_ms, 99), "ms"),
        Measure("steps, before", before.steps_per_s, "/s"),
        Measure("steps, while half is deleted", during.steps_per_s, "/s"),
        Measure("runs deleted", during.deleted / during.seconds, "/s", note=f"{during.deleted:,}"),
    ]
    return Outcome(measures, {"seeded": seeded, "due_left": during.left_due}, problems)


async def _turn(load: Load, label: str, seconds: float) -> Window:
    """Start runs at a steady pace for some seconds, with a scheduler of this turn's own."""
    scheduler = load.lab.start_scheduler()
    before = await _seeded(load)
    begun = time.monotonic()
    pending: set[asyncio.Task[None]] = set()
    for number in range(int(seconds * _RUNS_PER_S)):
        due = begun + number / _RUNS_PER_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        task = asyncio.create_task(_start(load, label))
        pending.add(task)
        task.add_done_callback(pending.discard)
    await asyncio.gather(*pending)
    await asyncio.sleep(2.0)
    took_s = time.monotonic() - begun
    deleted = before - await _seeded(load)
    left = await load.rows(
        "SELECT count(*) AS n FROM runs r JOIN retention a ON a.tenant_id = r.tenant_id "
        "WHERE r.finished_at < now() - make_interval(days => a.runs_days)",
        (),
    )
    rows = await load.rows(_GAPS, (label,))
    load.lab.stop(scheduler)
    gaps = [row["ms"] for row in rows if row["ms"] is not None]
    return Window(gaps, [row["own_ms"] for row in rows], took_s, deleted, left[0]["n"])


async def _start(load: Load, label: str) -> None:
    started = await start_run(load.db, load.tenant_id, StartRun("ten", "Go.", created_by=label))
    if started.doorbell is not None:
        load.bell.ring(started.doorbell)


async def _seeded(load: Load) -> int:
    rows = await load.rows("SELECT count(*) AS n FROM runs WHERE created_by = 'key_seed'", ())
    return int(rows[0]["n"])
