"""(e) What a step costs the stores: round trips, transactions, fsyncs and WAL bytes; and what an
idle stack asks of Postgres.

At low load runs of 1 and of 10 steps are made one at a time, and the difference is the price of a
step without the price of a run. What the idle stack did in the same time is taken off. Round trips
are counted by a proxy before Postgres; the rest are Postgres' own counters.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from benchmarks.load import Batch, Load, open_load, scripted
from benchmarks.meter import STATS_LAG_S, Meter, Reading
from benchmarks.options import Options
from benchmarks.proxy import CountingProxy
from benchmarks.report import Measure, Outcome
from benchmarks.stack import Lab, Stack

TITLE: Final = "what a step costs Postgres and Valkey, and an idle stack"
STEPS: Final = 10
_SPACING_S: Final = 0.4
"""From one run's start to the next at low load: several times what a run of ten steps takes."""
_NOISE: Final = 0.05
"""By how much an idle deduction may be off, per step."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Counters for one step, for the rest of a run, per idle second, and per step under load."""

    step: Mapping[str, float]
    run: Mapping[str, float]
    idle: Mapping[str, float]
    loaded: Mapping[str, float]


def run(stack: Stack, options: Options) -> Outcome:
    runs, idle_s = (10, 5.0) if options.quick else (40, 20.0)
    burst = 60 if options.quick else 500
    problems: list[str] = []
    with stack.lab("each") as lab, CountingProxy(lab.database_url) as proxy:
        lab.worker_database_url = proxy.url
        _start(lab)
        with closing(Meter(stack, lab)) as meter:
            idle, one, ten = asyncio.run(_low(lab, meter, proxy, runs, idle_s, problems))
    with stack.lab("each") as lab:
        _start(lab)
        with closing(Meter(stack, lab)) as meter:
            loaded = asyncio.run(_loaded(lab, meter, burst, problems))
    first, all_ten = one.net_of(idle), ten.net_of(idle)
    step = {k: (all_ten[k] - first[k]) / runs / (STEPS - 1) for k in first}
    rest = {k: first[k] / runs - step[k] for k in first}
    base = {k: idle.counts.get(k, 0.0) for k in loaded.counts}
    under_load = Reading(loaded.seconds, loaded.counts).net_of(Reading(idle.seconds, base))
    costs = Costs(step, rest, idle.per_s(), {k: v / burst / STEPS for k, v in under_load.items()})
    details = {
        "low_load_runs": runs,
        "load_runs": burst,
        "per_step": step,
        "per_run_besides": rest,
        "idle_per_s": costs.idle,
        "per_step_under_load": costs.loaded,
    }
    return Outcome(_measures(costs), details, problems)


def _start(lab: Lab) -> None:
    lab.start_scheduler()
    lab.start_workers(2)
    lab.start_api()


async def _low(
    lab: Lab, meter: Meter, proxy: CountingProxy, runs: int, idle_s: float, problems: list[str]
) -> tuple[Reading, Reading, Reading]:
    """Measure the idle stack, runs of one step, and runs of ten."""
    async with open_load(lab) as load:
        await load.agent("one", scripted(1))
        await load.agent("ten", scripted(STEPS))
        for number in range(4):
            await load.once("ten", 1, f"warm-up {number}")
        await _settle(lab)
        before = meter.read(round_trips=proxy.round_trips)
        lab.say(f"idle for {idle_s:g} s")
        await asyncio.sleep(idle_s)
        readings = [before, meter.read(round_trips=proxy.round_trips)]
        for agent, steps in (("one", 1), ("ten", STEPS)):
            lab.say(f"{runs} runs of {steps} steps, one at a time")
            await _one_at_a_time(load, agent, runs)
            await _settle(lab)
            readings.append(meter.read(round_trips=proxy.round_trips))
        for agent, steps in (("one", 1), ("ten", STEPS)):
            report = await load.report(agent, runs, steps)
            problems += [f"runs of {steps}: {p}" for p in report.problems]
    idle, one, ten = (b - a for a, b in itertools.pairwise(readings))
    return idle, one, ten


async def _one_at_a_time(load: Load, agent: str, runs: int) -> None:
    """Start runs by the clock: asking whether the last one has ended would be counted too."""
    for _ in range(runs):
        next_at = time.monotonic() + _SPACING_S
        load.ring(Batch(agent, (await load.start(agent, agent),)))
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))


async def _loaded(lab: Lab, meter: Meter, runs: int, problems: list[str]) -> Reading:
    """Measure under the load of (a), submission not counted."""
    async with open_load(lab) as load:
        await load.agent("ten", scripted(STEPS))
        await load.once("ten", 20, "warm-up")
        batch = await load.submit("ten", runs, "measured")
        await _settle(lab)
        await load.refresh(batch)
        before = meter.read(own=0)
        lab.say(f"{runs} runs of {STEPS} steps at once")
        load.ring(batch)
        polls = await load.wait(batch, timeout_s=300, every_s=0.5)
        await _settle(lab)
        after = meter.read(own=polls + 1)
        report = await load.report("measured", runs, STEPS)
        problems += [f"under load: {p}" for p in report.problems]
    counts = dict((after - before).counts)
    counts["transactions"] -= counts.pop("own")
    return Reading(after.seconds - before.seconds, counts)


async def _settle(lab: Lab) -> None:
    """Wait until every session has reported its counters."""
    lab.check()
    await asyncio.sleep(STATS_LAG_S)
    lab.check()


def _measures(costs: Costs) -> list[Measure]:
    step, rest, loaded = costs.step, costs.run, costs.loaded
    idle = costs.idle
    return [
        Measure(
            "fsynced commits per step", step["fsyncs"], "", 1 + _NOISE, "most",
            f"asked 1; {_NOISE:g} for the idle deduction",
        ),
        Measure("transactions per step", step["transactions"], "", note="claim and commit"),
        Measure("round trips to Postgres per step", step["round_trips"], ""),
        Measure("WAL per step", step["wal_bytes"], "B"),
        Measure("Valkey commands per step", step["valkey_commands"], ""),
        Measure(
            "fsynced commits per run besides its steps", rest["fsyncs"], "",
            1 + 10 * _NOISE, "most", "asked 1, the admission",
        ),
        Measure("round trips to Postgres per run besides its steps", rest["round_trips"], ""),
        Measure(
            "under load: fsyncs per step", loaded["fsyncs"], "", 1, "most",
            "commits of steps that end together share one",
        ),
        Measure("under load: transactions per step", loaded["transactions"], ""),
        Measure("under load: WAL per step", loaded["wal_bytes"], "B", note="full pages included"),
        Measure("idle: transactions", idle["transactions"], "/s", 5, "most"),
        Measure("idle: WAL", idle["wal_bytes"], "B/s"),
        Measure("idle: Valkey commands", idle["valkey_commands"], "/s"),
    ]  # fmt: skip
