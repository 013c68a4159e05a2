"""(h) Waiting costs nothing: 1,000 runs that are paused or wait hold no worker, memory stays flat,
and a restart of everything goes on with them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import psutil

from benchmarks.load import Load, open_load
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome
from benchmarks.stack import Lab, Proc, Stack
from harness_common.commands import answer_run, pause_run, resume_run
from harness_common.contracts.agent import AgentSpec
from harness_common.core.run import Status

TITLE: Final = "1,000 paused and waiting runs, and a restart of everything"
_ON: Final = {"text": "on", "continue": True, "delay_s": 0.2}
_ASK: Final = {"name": "ask_user", "input": {"question": "Shall I?"}}


def run(stack: Stack, options: Options) -> Outcome:
    """Make runs wait, look at the processes, restart them, and let the runs end."""
    count = 100 if options.quick else 1_000
    with stack.lab("waiting") as lab:
        return asyncio.run(_measure(lab, count))


async def _measure(lab: Lab, count: int) -> Outcome:
    half = count // 2
    procs = _start(lab)
    async with open_load(lab) as load:
        await load.agent("asks", _agent([{"text": "?", "tools": [_ASK]}, {"text": "done"}]))
        await load.agent("long", _agent([_ON] * 10 + [{"text": "done"}]))
        before = _rss(procs)
        await _make_wait(load, half)
        held = await _held(load)
        await asyncio.sleep(5)
        waiting = _rss(procs)
        used = await _cpu(procs, 5.0)
        for proc in procs:
            lab.stop(proc)
        await asyncio.sleep(1)
        begun = time.monotonic()
        procs = _start(lab)
        restarted_s = time.monotonic() - begun
        ended_s, ended = await _let_go(load, count)
    growth = {name: waiting[name] - before[name] for name in before}
    problems = [] if ended == count else [f"{ended} of {count} runs ended"]
    if held:
        problems.append(f"{held} of the waiting runs are held by a worker")
    return Outcome(
        [
            Measure("waiting runs that hold a worker", held, "runs", 0, "most"),
            Measure("growth of all processes' memory", max(growth.values()), "MB", 25, "most",
                    note="the one that grew most"),
            Measure("CPU of all processes while they wait", used, "% of a core", 15, "most"),
            Measure("started again", restarted_s, "s"),
            Measure(f"{count} runs answered or resumed, and ended", ended_s, "s"),
        ],
        {"rss_mb_before": before, "rss_mb_waiting": waiting},
        problems,
    )  # fmt: skip


def _agent(script: list[Any]) -> AgentSpec:
    return AgentSpec(
        model="scripted/waiting",
        tools=("ask_user",),
        max_turns=100,
        model_options={"script": script},
    )


def _start(lab: Lab) -> list[Proc]:
    scheduler, workers = lab.start_scheduler(), lab.start_workers(2)
    return [scheduler, workers]


def _rss(procs: list[Proc]) -> dict[str, float]:
    """Return the memory of each process and its children, in MB."""
    out: dict[str, float] = {}
    for proc in procs:
        root = psutil.Process(proc.pid)
        for n, one in enumerate([root, *root.children()]):
            out[f"{proc.name} {n}"] = one.memory_info().rss / 1e6
    return out


async def _cpu(procs: list[Proc], seconds: float) -> float:
    def total() -> float:
        trees = [psutil.Process(p.pid) for p in procs]
        every = [one for tree in trees for one in (tree, *tree.children())]
        return sum(sum(one.cpu_times()[:2]) for one in every)

    before = total()
    await asyncio.sleep(seconds)
    return (total() - before) / seconds * 100


async def _make_wait(load: Load, half: int) -> None:
    """Let `half` runs ask a person, and pause as many in the middle of their work."""
    asking = await load.submit("asks", half, "asks")
    await load.refresh(asking)
    load.ring(asking)
    paused = await load.submit("long", half, "long")
    await load.refresh(paused)
    load.ring(paused)
    for run_id in paused.run_ids:
        await pause_run(load.db, load.tenant_id, run_id, by="bench")
    await _until(load, Status.WAITING_INPUT, half)
    await _until(load, Status.PAUSED, half)


async def _until(load: Load, status: Status, count: int, timeout_s: float = 180) -> None:
    query = f"SELECT count(*) = {count} FROM runs WHERE status = '{status}'"
    await asyncio.to_thread(load.lab.wait, f"{count} runs {status}", query, timeout_s)


async def _held(load: Load) -> int:
    rows = await load.rows(
        "SELECT (SELECT count(*) FROM runs WHERE claim_id IS NOT NULL) + "
        "(SELECT sum(running) FROM tenant_slots) AS n",
        (),
    )
    return int(rows[0]["n"])


async def _let_go(load: Load, count: int) -> tuple[float, int]:
    """Answer and resume everything; returns how long it took until all had ended, and how many."""
    begun = time.monotonic()
    rows = await load.rows("SELECT id, status FROM runs WHERE finished_at IS NULL", ())
    for row in rows:
        if row["status"] == Status.PAUSED:
            await resume_run(load.db, load.tenant_id, row["id"], by="bench")
        else:
            await answer_run(load.db, load.tenant_id, row["id"], text="yes", call=None, by="bench")
    await _until(load, Status.SUCCEEDED, count, 300)
    return time.monotonic() - begun, count
