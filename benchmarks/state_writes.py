"""(g) State writes: 1,000 transitions a second of sessions and runs against Postgres, how long each
takes.

An open loop: arrivals are due every millisecond whether or not those before have ended, so that
waiting counts. Each is one of what a platform writes: a session made, a run accepted (with its
event and first message), a step committed, a run cancelled. `fsync` is on; commits that come
together share one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Final
from uuid import UUID, uuid4

import uvloop

from benchmarks.load import Load, open_load, scripted
from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, percentile
from benchmarks.stack import Lab, Stack
from harness_common.commands import StartRun, cancel_run, start_run
from harness_common.core.inputs import StepDone
from harness_common.core.message import Message, Text
from harness_common.core.step import ModelAnswered
from harness_common.store.apply import StepRecord, group_commit, settle
from harness_common.store.audit import Actor
from harness_common.store.claim import Claimed, Want, claim
from harness_common.store.db import DatabaseUnavailable
from harness_common.store.sessions import create_session

TITLE: Final = "1,000 state writes a second"
_RATE: Final = 1_000
_SEED: Final = 7


def run(stack: Stack, options: Options) -> Outcome:
    """Measure for some seconds at the rate asked for."""
    seconds = 2 if options.quick else 15
    with stack.lab("writes") as lab:
        return uvloop.run(_measure(lab, seconds))


class _Writer:
    """Makes transitions, and times each from when it was due."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._commits = group_commit(load.db)
        self._worker = uuid4()
        self._chance = random.Random(_SEED)
        self.claimed: list[Claimed] = []
        self.startable: list[UUID] = []
        self.failed: list[str] = []
        self.ms: dict[str, list[float]] = {"session": [], "run": [], "step": [], "cancel": []}

    async def prepare(self, count: int) -> None:
        """Claim runs beforehand, so that what is measured is the commit of their steps."""
        batch = await self._load.submit("many", count, "held")
        for at in range(0, count, 100):
            wants = [
                Want(self._load.tenant_id, bell.run_id, bell.version, uuid4())
                for bell in batch.bells[at : at + 100]
            ]
            got = await claim(self._load.db, wants, worker=self._worker, hold_s=3600)
            self.claimed += [one for one in got if one is not None]

    def pick(self) -> tuple[str, Callable[[], Awaitable[object]]]:
        """Choose the next write: mostly steps, as it is in life."""
        kind = self._chance.choices(("step", "run", "session", "cancel"), (70, 15, 10, 5))[0]
        if kind == "step" and self.claimed:
            one = self.claimed.pop()
            return kind, lambda: self._step(one)
        if kind == "cancel" and self.startable:
            run_id = self.startable.pop()
            return kind, lambda: cancel_run(self._load.db, self._load.tenant_id, run_id, by="bench")
        if kind == "session":
            return kind, self._session
        return "run", self._run

    async def write(self, due: float) -> None:
        """Do one write that was due at `due` (monotonic)."""
        kind, what = self.pick()
        try:
            await what()
        except DatabaseUnavailable as error:
            self.failed.append(f"{kind}: {error}")
            return
        self.ms[kind].append((time.perf_counter() - due) * 1000)

    def problems(self) -> list[str]:
        """Name what could not be written."""
        return [f"{len(self.failed)} writes failed: {self.failed[0]}"] if self.failed else []

    async def _run(self) -> None:
        started = await start_run(
            self._load.db, self._load.tenant_id, StartRun("many", "Go.", created_by="bench")
        )
        self.startable.append(started.run_id)

    async def _session(self) -> None:
        await create_session(
            self._load.db, self._load.tenant_id,
            title="x", user_id=None, metadata={}, actor=Actor("bench"),
        )  # fmt: skip

    async def _step(self, one: Claimed) -> None:
        now: datetime = one.now
        answer = ModelAnswered(Message("assistant", (Text("on"),)), "pause", "scripted/bench")
        await settle(
            self._load.db, self._commits, one.run, [StepDone(answer, now)],
            now=now, step=StepRecord(now, self._worker),
        )  # fmt: skip


async def _measure(lab: Lab, seconds: int) -> Outcome:
    async with open_load(lab) as load:
        await load.agent("many", scripted(100))
        writer = _Writer(load)
        await writer.prepare(int(seconds * _RATE * 0.75))
        tasks: set[asyncio.Task[None]] = set()
        begun = time.perf_counter()
        for n in range(seconds * _RATE):
            due = begun + n / _RATE
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(writer.write(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        submitted_s = time.perf_counter() - begun
        await asyncio.gather(*tasks)
        total_s = time.perf_counter() - begun
    every = [ms for times in writer.ms.values() for ms in times]
    mean = sum(every) / len(every)
    return Outcome(
        [
            Measure("written per second", len(every) / total_s, "/s", 0.97 * _RATE),
            Measure("a write, mean", mean, "ms", 12, "most"),
            Measure("a write, p99", percentile(every, 99), "ms", 45, "most"),
            *(
                Measure(f"{kind}: p50", percentile(times, 50), "ms", note=f"{len(times)} of them")
                for kind, times in writer.ms.items()
            ),
        ],
        {
            "seconds": seconds,
            "submitted_s": submitted_s,
            "ms": {
                k: {f"p{q}": percentile(v, q) for q in (50, 90, 99)} for k, v in writer.ms.items()
            },
        },
        writer.problems(),
    )
