"""(a) Throughput of trivial steps: 500 runs of 10 steps on 2 worker processes, against the bare
loop in the same run.

The three variants take turns, so that a machine that changes its mind hits all of them; each turn
gives two ratios, and their medians are what counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from typing import Final

import psycopg
from celery import Celery

from benchmarks import bare_loop
from benchmarks.load import open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, median
from benchmarks.stack import BenchFailed, Lab, Stack

TITLE: Final = "500 runs x 10 trivial steps, 2 worker processes"
STEPS: Final = 10
_WARM_UP: Final = 40
_BARE: Final = "bare loop"


class _Turns:
    """Rates of every variant, turn by turn."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}
        self.claims: dict[str, list[int]] = {}
        self.problems: list[str] = []

    def ratios(self, name: str) -> list[float]:
        """Return each turn's rate over the bare loop's rate of the same turn."""
        pairs = zip(self.rates[name], self.rates[_BARE], strict=True)
        return [ours / bare for ours, bare in pairs]


def run(stack: Stack, options: Options) -> Outcome:
    runs = 60 if options.quick else 500
    turns = _Turns()
    variants: list[tuple[str, Callable[[], float]]] = [
        (_BARE, lambda: _bare(stack, runs, turns)),
        ("1 step a task", lambda: _ours(stack, runs, 1, turns)),
        ("10 steps a task", lambda: _ours(stack, runs, 10, turns)),
    ]
    for turn in range(options.pairs):
        for name, measure in variants:
            rate = measure()
            turns.rates.setdefault(name, []).append(rate)
            stack.say(f"turn {turn + 1} of {options.pairs}: {name}: {rate:,.0f} steps/s")
    return _outcome(turns, runs)


def _outcome(turns: _Turns, runs: int) -> Outcome:
    one, ten = turns.ratios("1 step a task"), turns.ratios("10 steps a task")
    spread = "medians; ratios {:.2f}-{:.2f}".format
    measures = [
        Measure("bare loop", median(turns.rates[_BARE]), "steps/s"),
        Measure("1 step a task", median(turns.rates["1 step a task"]), "steps/s"),
        Measure("10 steps a task", median(turns.rates["10 steps a task"]), "steps/s"),
        Measure(
            "1 step a task ÷ bare loop", median(one), "x", 1.0, note=spread(min(one), max(one))
        ),
        Measure(
            "10 steps a task ÷ bare loop", median(ten), "x", 4.0, note=spread(min(ten), max(ten))
        ),
    ]
    details = {
        "runs": runs,
        "steps_per_run": STEPS,
        "steps_per_s": turns.rates,
        "ratios": {"1 step a task": one, "10 steps a task": ten},
        "claims": turns.claims,
    }
    return Outcome(measures, details, turns.problems)


def _ours(stack: Stack, runs: int, steps_per_task: int, turns: _Turns) -> float:
    env = {"HARNESS_STEPS_PER_TASK": str(steps_per_task)}
    with stack.lab("steps", env) as lab:
        lab.start_scheduler()
        lab.start_workers(2)
        return asyncio.run(_measure(lab, runs, f"k{steps_per_task}", turns))


async def _measure(lab: Lab, runs: int, variant: str, turns: _Turns) -> float:
    async with open_load(lab) as load:
        await load.agent("ten", scripted(STEPS))
        await load.once("ten", _WARM_UP, "warm-up")
        await load.once("ten", runs, "measured", timeout_s=300)
        report = await load.report("measured", runs, STEPS)
        turns.claims.setdefault(variant, []).append(report.claims)
        turns.problems += [f"{variant}: {p}" for p in report.problems]
        return report.steps_per_s


def _bare(stack: Stack, runs: int, turns: _Turns) -> float:
    """Measure the bare loop over the same span: first step's start to last commit."""
    broker_url = stack.redis_url(1)
    with stack.lab("bare") as lab, psycopg.connect(lab.database_url, autocommit=True) as conn:
        conn.execute(bare_loop.TABLE)
        env = {"BARE_BROKER_URL": broker_url, "BARE_DATABASE_URL": lab.database_url}
        args = ["-A", "benchmarks.bare_loop", "worker", "-P", "prefork", "-c", "2"]
        args += ["--without-mingle", "--without-gossip", "-l", "WARNING"]
        lab.start("bare", "celery", args, env)
        with closing(bare_loop.make_app(broker_url)) as app:
            _send(lab, conn, app, range(-_WARM_UP, 0))
            _send(lab, conn, app, range(runs))
        row = conn.execute(
            "SELECT count(*), extract(epoch FROM max(created_at) - min(started_at)) "
            "FROM bare_steps WHERE run >= 0"
        ).fetchone()
    if row is None or row[0] != runs * STEPS:
        raise BenchFailed(f"the bare loop wrote {row} instead of {runs * STEPS} steps")
    return float(row[0]) / float(row[1])


def _send(lab: Lab, conn: psycopg.Connection[tuple[object, ...]], app: Celery, runs: range) -> None:
    """Send the first task of every run and wait until its last step is written."""
    with app.producer_or_acquire() as producer:
        for number in runs:
            app.send_task(bare_loop.TASK, (number, 1, STEPS), producer=producer)

    def done() -> bool:
        query = "SELECT count(*) FROM bare_steps WHERE step = %s AND run BETWEEN %s AND %s"
        row = conn.execute(query, (STEPS, runs[0], runs[-1])).fetchone()
        return row is not None and row[0] == len(runs)

    lab.wait_for("the end of the bare loop", done, timeout_s=300)
