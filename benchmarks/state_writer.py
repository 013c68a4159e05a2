"""A process of (g) that writes state at a steady rate and times each write from when it was due."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.synchronize import Barrier
from typing import Final
from uuid import UUID, uuid4

import uvloop

from benchmarks.load import connected
from harness_common.commands import Started, StartRun, cancel_run, start_run
from harness_common.core.inputs import StepDone
from harness_common.core.message import Message, Text
from harness_common.core.step import ModelAnswered
from harness_common.settings import Settings
from harness_common.store.apply import group_commit, settle
from harness_common.store.audit import Actor
from harness_common.store.claim import Claimed, Want, claim
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.db import Database
from harness_common.store.sessions import create_session
from harness_common.store.writes import StepRecord

AGENT: Final = "many"
_KINDS: Final = {"step": 70, "run": 15, "session": 10, "cancel": 5}
"""Of a hundred writes, as it is in life."""
_CLAIM: Final = 100
"""Runs claimed in one statement beforehand."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one process has to do."""

    settings: Settings
    database_url: str
    seed: int
    per_s: float
    seconds: int


@dataclass(frozen=True, slots=True)
class Written:
    """What it did: milliseconds by kind, from when a write was due to its end."""

    ms: dict[str, list[float]]
    failed: list[str]
    seconds: float


class _Writer:
    def __init__(self, db: Database, tenant_id: UUID, seed: int) -> None:
        self._db = db
        self._tenant_id = tenant_id
        self._commits = group_commit(db)
        self._worker = uuid4()
        self._chance = random.Random(seed)
        self._claimed: list[Claimed] = []
        self._startable: list[UUID] = []
        self.failed: list[str] = []
        self.ms: dict[str, list[float]] = {kind: [] for kind in _KINDS}

    async def prepare(self, count: int) -> None:
        """Claim runs, so that what is measured is the commit of their steps."""
        for at in range(0, count, _CLAIM):
            here = min(_CLAIM, count - at)
            started = await asyncio.gather(*(self._start() for _ in range(here)))
            wants = [
                Want(self._tenant_id, one.doorbell.run_id, one.doorbell.version, uuid4())
                for one in started
                if one.doorbell is not None
            ]
            got = await claim(self._db, wants, worker=self._worker, hold_s=3600)
            self._claimed += [one for one in got if one is not None]

    def _pick(self) -> tuple[str, Callable[[], Awaitable[object]]]:
        kind = self._chance.choices(tuple(_KINDS), tuple(_KINDS.values()))[0]
        if kind == "step" and self._claimed:
            one = self._claimed.pop()
            return kind, lambda: self._step(one)
        if kind == "cancel" and self._startable:
            run_id = self._startable.pop()
            return kind, lambda: cancel_run(self._db, self._tenant_id, run_id, by="bench")
        return ("session", self._session) if kind == "session" else ("run", self._run)

    async def write(self, due: float) -> None:
        """Do one write that was due at `due` (seconds of `perf_counter`)."""
        kind, what = self._pick()
        try:
            await what()
        except DatabaseUnavailable as error:
            self.failed.append(f"{kind}: {error}")
            return
        self.ms[kind].append((time.perf_counter() - due) * 1000)

    async def _start(self) -> Started:
        request = StartRun(AGENT, "Go.", created_by="bench")
        return await start_run(self._db, self._tenant_id, request)

    async def _run(self) -> None:
        self._startable.append((await self._start()).run_id)

    async def _session(self) -> None:
        await create_session(
            self._db, self._tenant_id,
            title="x", user_id=None, metadata={}, actor=Actor("bench"),
        )  # fmt: skip

    async def _step(self, one: Claimed) -> None:
        now: datetime = one.now
        answer = ModelAnswered(Message("assistant", (Text("on"),)), "pause", "scripted/bench")
        await settle(
            self._db, self._commits, one.run, [StepDone(answer, now)],
            now=now, step=StepRecord(now, self._worker),
        )  # fmt: skip


def write(work: Work, together: Barrier) -> Written:
    """Prepare, wait for the other processes, and write at the rate asked for."""
    return uvloop.run(_write(work, together))


async def _write(work: Work, together: Barrier) -> Written:
    async with connected(work.settings, work.database_url) as (db, tenant_id):
        writer = _Writer(db, tenant_id, work.seed)
        count = int(work.seconds * work.per_s)
        await writer.prepare(int(count * 0.75))
        await asyncio.to_thread(together.wait)
        tasks: set[asyncio.Task[None]] = set()
        begun = time.perf_counter()
        for n in range(count):
            due = begun + n / work.per_s
            if (pause := due - time.perf_counter()) > 0:
                await asyncio.sleep(pause)
            task = asyncio.create_task(writer.write(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return Written(writer.ms, writer.failed, time.perf_counter() - begun)
