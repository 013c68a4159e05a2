"""(g) State writes: 1,000 transitions a second of sessions and runs against Postgres, how long each
takes.

An open loop: arrivals are due at a steady rate whether or not those before have ended, so that
waiting counts. Each is one of what a platform writes: a session made, a run accepted (with its
event and first message), a step committed, a run cancelled. `fsync` is on; commits that come
together share one. Two processes write, as two workers would; what they cannot keep up with is
tried again at lower rates, until both bounds hold.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Final

import uvloop

from benchmarks.load import open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Json, Measure, Outcome, percentile
from benchmarks.stack import BenchFailed, Lab, Stack
from benchmarks.state_writer import AGENT, Work, Written, write

TITLE: Final = "1,000 state writes a second"
_RATES: Final = (1_000, 900, 800, 700, 600, 500, 400, 300, 200)
_MEAN_MS: Final = 12
_P99_MS: Final = 45
_PROCESSES: Final = 2
_SEED: Final = 7


def run(stack: Stack, options: Options) -> Outcome:
    """Measure at falling rates until one is held; each has an empty database."""
    seconds = 2 if options.quick else 10
    tried: list[Json] = []
    problems: list[str] = []
    for rate in _RATES:
        with stack.lab(f"writes_{rate}") as lab:
            uvloop.run(_prepare(lab))
            written = _together(lab, rate, seconds)
        problems += [one for part in written for one in part.failed]
        tried.append(_told(written, rate))
        stack.say(f"    {rate}/s: mean {tried[-1]['mean_ms']:.1f} ms")
        if _held(tried[-1]):
            break
    return Outcome(
        _measures(tried), {"seconds": seconds, "processes": _PROCESSES, "tried": tried}, problems
    )


async def _prepare(lab: Lab) -> None:
    async with open_load(lab) as load:
        await load.agent(AGENT, scripted(100))


def _together(lab: Lab, rate: int, seconds: int) -> list[Written]:
    """Let the processes write at the same time; each does its share of the rate."""
    spawn = multiprocessing.get_context("spawn")
    together = spawn.Barrier(_PROCESSES)
    works = [
        Work(lab.settings, lab.worker_database_url, _SEED + n, rate / _PROCESSES, seconds)
        for n in range(_PROCESSES)
    ]
    ends = [spawn.Pipe(duplex=False) for _ in works]
    processes = [
        spawn.Process(target=_child, args=(work, together, sender), daemon=True)
        for work, (_, sender) in zip(works, ends, strict=True)
    ]
    for process, (_, sender) in zip(processes, ends, strict=True):
        process.start()
        sender.close()  # so that the end of a process is the end of what it sends
    try:
        with ThreadPoolExecutor(_PROCESSES) as pool:
            return list(pool.map(_receive, [receiver for receiver, _ in ends]))
    finally:
        for process in processes:
            process.kill()
            process.join()


def _child(work: Work, together: Barrier, sender: Connection) -> None:
    sender.send(write(work, together))


def _receive(receiver: Connection) -> Written:
    try:
        if not receiver.poll(300):
            raise BenchFailed("a process that writes state said nothing for five minutes")
        written: Written = receiver.recv()
    except EOFError:
        raise BenchFailed("a process that writes state ended before its time") from None
    return written


def _told(written: list[Written], rate: int) -> Json:
    ms = {kind: [one for part in written for one in part.ms[kind]] for kind in written[0].ms}
    every = [one for times in ms.values() for one in times]
    return {
        "rate_per_s": rate,
        "per_s": sum(sum(map(len, part.ms.values())) / part.seconds for part in written),
        "mean_ms": sum(every) / len(every),
        "p99_ms": percentile(every, 99),
        "ms": {k: {f"p{q}": percentile(v, q) for q in (50, 90, 99)} for k, v in ms.items()},
        "load_1m": os.getloadavg()[0],
    }


def _held(told: Json) -> bool:
    return bool(
        told["per_s"] >= 0.97 * told["rate_per_s"]
        and told["mean_ms"] <= _MEAN_MS
        and told["p99_ms"] <= _P99_MS
    )


def _measures(tried: list[Json]) -> list[Measure]:
    most, last = tried[0], tried[-1]
    held = last["rate_per_s"] if _held(last) else 0
    asked = f"at {most['rate_per_s']:,}/s"
    return [
        Measure("rate held with both bounds", held, "/s", _RATES[0]),
        Measure(f"a write, mean, {asked}", most["mean_ms"], "ms", _MEAN_MS, "most"),
        Measure(f"a write, p99, {asked}", most["p99_ms"], "ms", _P99_MS, "most"),
        Measure("a write, mean, at the rate held", last["mean_ms"], "ms", _MEAN_MS, "most"),
        Measure("a write, p99, at the rate held", last["p99_ms"], "ms", _P99_MS, "most"),
        *(
            Measure(f"{kind}: p50, at the rate held", told["p50"], "ms")
            for kind, told in last["ms"].items()
        ),
    ]
