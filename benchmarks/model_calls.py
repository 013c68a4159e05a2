"""(c) Slow model calls: how many whole steps one worker process has in flight while it waits for a
model server, and what that costs.

The server is the tests' fake Chat Completions server in a process of its own; every run is one
model step over the real `openai` provider. All runs are submitted first and rung for at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
import psutil

from benchmarks.load import Report, open_load
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, median
from benchmarks.stack import Lab, Proc, Stack
from harness_common.contracts.agent import AgentSpec

TITLE: Final = "one worker process, whole steps whose model call takes 2 s and 10 s"
_SAMPLE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Case:
    """One load."""

    delay_s: float
    runs: int
    concurrency: int
    in_flight: int
    """The least in flight at the peak that is right."""
    rss_mb: float
    """The most memory that is right."""
    steps_per_s: float | None = None


CASES: Final = (Case(2, 6_000, 1_500, 400, 200, 200), Case(10, 3_000, 4_000, 2_000, 300))
QUICK: Final = (Case(0.5, 200, 1_500, 50, 200, 50), Case(2, 200, 4_000, 100, 300))


@dataclass(slots=True)
class Samples:
    """What was seen of the worker and of the server while it went on."""

    idle_rss_mb: float = 0.0
    rss_mb: list[float] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    server_cpu_s: float = 0.0
    stats: dict[str, Any] = field(default_factory=dict)


def run(stack: Stack, options: Options) -> Outcome:
    measures: list[Measure] = []
    details: dict[str, Any] = {}
    problems: list[str] = []
    for case in QUICK if options.quick else CASES:
        stack.say(f"{case.runs} steps of {case.delay_s:g} s")
        report, samples = _case(stack, case)
        measures += _measures(case, report, samples)
        problems += [f"{case.delay_s:g} s: {p}" for p in _problems(case, report, samples)]
        details[f"{case.delay_s:g} s"] = _details(case, report, samples)
    return Outcome(measures, details, problems)


def _case(stack: Stack, case: Case) -> tuple[Report, Samples]:
    env = {"HARNESS_WORKER__CONCURRENCY": str(case.concurrency)}
    with stack.lab("calls", env) as lab:
        server, port = _start_server(lab, case.delay_s)
        lab.start_scheduler()
        url = f"http://127.0.0.1:{port}/v1"
        worker = lab.start_one_worker({"HARNESS_OPENAI_BASE_URL": url})
        return asyncio.run(_measure(lab, case, worker, server, port))


def _start_server(lab: Lab, delay_s: float) -> tuple[Proc, int]:
    args = ["--port", "0", "--delay", f"{delay_s:g}"]
    server = lab.start("server", "tests.fakes.openai_server", args)
    lab.wait_for("the model server", lambda: "port=" in server.log.read_text())
    return server, int(server.log.read_text().partition("port=")[2].split()[0])


async def _measure(
    lab: Lab, case: Case, worker: Proc, server: Proc, port: int
) -> tuple[Report, Samples]:
    async with open_load(lab) as load:
        await load.agent("one", AgentSpec(model="openai/bench", max_turns=2))
        await load.once("one", 1, "warm-up")
        batch = await load.submit("one", case.runs, "measured")
        lab.say(f"{case.runs} runs submitted, ringing")
        with _sampling(worker, server, port) as samples:
            await load.refresh(batch)
            load.ring(batch)
            await load.wait(batch, timeout_s=300, every_s=0.5)
        return await load.report("measured", case.runs, 1), samples


@contextmanager
def _sampling(worker: Proc, server: Proc, port: int) -> Iterator[Samples]:
    """Watch memory, CPU and open calls from a thread, without a hand in the worker."""
    samples, stop = Samples(), threading.Event()
    of_worker, of_server = psutil.Process(worker.pid), psutil.Process(server.pid)
    samples.idle_rss_mb = of_worker.memory_info().rss / 1e6
    before, server_before = of_worker.cpu_times(), of_server.cpu_times()
    stats_url = f"http://127.0.0.1:{port}/stats"

    def watch() -> None:
        with httpx.Client(timeout=10) as client:
            while not stop.wait(_SAMPLE_S):
                with contextlib.suppress(psutil.Error, httpx.HTTPError):
                    samples.rss_mb.append(of_worker.memory_info().rss / 1e6)
                    samples.in_flight.append(client.get(stats_url).json()["open"])

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        stop.set()
        thread.join()
    after, server_after = of_worker.cpu_times(), of_server.cpu_times()
    samples.cpu_s = after.user + after.system - before.user - before.system
    samples.server_cpu_s = (
        server_after.user + server_after.system - server_before.user - server_before.system
    )
    samples.rss_mb.append(of_worker.memory_info().rss / 1e6)
    samples.stats = httpx.get(stats_url).json()


def _problems(case: Case, report: Report, samples: Samples) -> list[str]:
    found = list(report.problems)
    calls = samples.stats["calls"] - 1  # the warm-up
    if calls < case.runs:
        found.append(f"the model server saw {calls} calls instead of {case.runs}")
    return found


def _measures(case: Case, report: Report, samples: Samples) -> list[Measure]:
    name = f"{case.delay_s:g} s calls"
    lost = report.steps - report.committed
    return [
        Measure(f"{name}: whole steps", report.steps_per_s, "steps/s", case.steps_per_s),
        Measure(f"{name}: peak in flight", samples.stats["max_open"], "calls", case.in_flight),
        Measure(
            f"{name}: peak memory of the worker", max(samples.rss_mb), "MB", case.rss_mb, "most",
            f"idle {samples.idle_rss_mb:.0f} MB",
        ),
        Measure(f"{name}: CPU of the worker", samples.cpu_s, "s"),
        Measure(f"{name}: lost", lost, "steps", 0, "most"),
        Measure(
            f"{name}: called again", samples.stats["calls"] - 1 - case.runs, "calls", 0, "most",
            f"{report.recovered} runs taken from a worker believed dead",
        ),
    ]  # fmt: skip


def _details(case: Case, report: Report, samples: Samples) -> dict[str, Any]:
    busy = [n for n in samples.in_flight if n]
    return {
        "runs": case.runs,
        "delay_s": case.delay_s,
        "concurrency": case.concurrency,
        "elapsed_s": report.elapsed_s,
        "in_flight_median": median(busy) if busy else 0,
        "claims": report.claims,
        "recovered": report.recovered,
        "server": samples.stats,
        "server_cpu_s": samples.server_cpu_s,
        "worker_cpu_ms_per_step": samples.cpu_s / report.steps * 1000,
        "rss_mb_after": samples.rss_mb[-1],
    }
