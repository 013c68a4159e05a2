"""Runs to measure with: a tenant, scripted agents, runs submitted through the platform's own
commands, and the check that every step of them was committed exactly once.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, LiteralString
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from benchmarks.stack import BenchFailed, Lab
from harness_common.broker.app import make_app
from harness_common.broker.publish import Bell, Doorbell
from harness_common.commands import StartRun, start_run
from harness_common.contracts.agent import AgentSpec
from harness_common.settings import Settings
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_common.store.bootstrap import ensure_tenant
from harness_common.store.db import Database
from harness_common.store.postgres import pg
from harness_common.store.writes import RING_AFTER_S

_HOLD: Final = 25
"""Runs after which submitting tells the scheduler to leave them alone: well within its 5 s."""
_CHECK: LiteralString = """
WITH r AS (
    SELECT tenant_id, id, status, step, next_seq, fence FROM runs WHERE created_by = %(label)s
), c AS (
    SELECT c.* FROM checkpoints c JOIN r ON r.tenant_id = c.tenant_id AND r.id = c.run_id
), e AS (
    SELECT e.run_id, e.seq, e.type, e.step FROM events e
    JOIN r ON r.tenant_id = e.tenant_id AND r.id = e.run_id
), completed AS (
    SELECT run_id, step FROM e WHERE type = 'step.completed'
)
SELECT (SELECT count(*) FROM r) AS runs,
       (SELECT count(*) FROM r WHERE status = 'succeeded') AS succeeded,
       (SELECT count(*) FROM r WHERE step = %(steps)s) AS with_all_steps,
       (SELECT count(*) FROM c) AS checkpoints,
       (SELECT count(*) FROM completed) AS completed,
       (SELECT count(DISTINCT (run_id, step)) FROM completed) AS completed_once,
       (SELECT count(*) FROM e) AS events,
       (SELECT count(*) FROM e WHERE type = 'run.recovered') AS recovered,
       (SELECT sum(next_seq - 1) FROM r) AS events_numbered,
       (SELECT sum(fence) FROM r) AS claims,
       (SELECT min(started_at) FROM c) AS first_start,
       (SELECT max(created_at) FROM c) AS last_commit
"""


def scripted(steps: int, *, text: str = "A short answer.") -> AgentSpec:
    """Define an agent whose run takes exactly `steps` model steps."""
    script: list[Any] = [{"text": text, "continue": True}] * (steps - 1) + [{"text": "done"}]
    return AgentSpec(model="scripted/bench", max_turns=steps + 1, model_options={"script": script})


@dataclass(frozen=True, slots=True)
class Batch:
    """Submitted runs of one label, and the doorbells that make them begin."""

    label: str
    bells: tuple[Doorbell, ...]

    @property
    def run_ids(self) -> list[UUID]:
        """Return the ids of the runs."""
        return [bell.run_id for bell in self.bells]


@dataclass(frozen=True, slots=True)
class Report:
    """What a batch did. `problems` is empty when every step was committed exactly once."""

    steps: int
    committed: int
    """Checkpoints there are; `steps` when none was lost."""
    elapsed_s: float
    """From the first step's start to the last commit, by Postgres time."""
    claims: int
    recovered: int
    """Runs taken from a worker believed dead. No fault was made: it should be 0."""
    problems: tuple[str, ...]

    @property
    def steps_per_s(self) -> float:
        """Return the throughput."""
        return self.steps / self.elapsed_s


class Load:
    """A tenant of a lab and what it asks for. Open with `open_load`."""

    def __init__(self, lab: Lab, db: Database, bell: Bell, tenant_id: UUID) -> None:
        self.lab = lab
        self.db = db
        self.tenant_id = tenant_id
        self.bell = bell

    async def agent(self, name: str, spec: AgentSpec) -> None:
        """Make an agent."""
        await put_agent(self.db, self.tenant_id, name, spec, Actor("bench"))

    async def start(self, agent: str, label: str) -> Doorbell:
        """Make an admitted run; the scheduler will ring for it after a while."""
        request = StartRun(agent, "Go.", created_by=label)
        started = await start_run(self.db, self.tenant_id, request)
        if started.doorbell is None:
            raise BenchFailed(f"a run was not admitted at once: {started.status}")
        return started.doorbell

    async def submit(self, agent: str, count: int, label: str) -> Batch:
        """Make `count` admitted runs that nobody rings for, so that all can begin together."""
        todo = iter(range(count))
        bells: list[Doorbell] = []

        async def some() -> None:
            mine: list[Doorbell] = []
            for _ in todo:
                mine.append(await self.start(agent, label))
                if len(mine) == _HOLD:
                    await self._ring_after(mine, 3600)
                    bells.extend(mine)
                    mine = []
            await self._ring_after(mine, 3600)
            bells.extend(mine)

        await asyncio.gather(*(some() for _ in range(4)))
        return Batch(label, tuple(bells))

    async def refresh(self, batch: Batch) -> None:
        """Say in the rows that the doorbells are rung now, as `start_run` does."""
        await self._ring_after(batch.bells, RING_AFTER_S)

    async def _ring_after(self, bells: Sequence[Doorbell], seconds: float) -> None:
        """Set after how long the scheduler rings again."""
        async with self.db.connection() as conn:
            await pg(conn).execute(
                "UPDATE runs SET rung_at = clock_timestamp(), "
                "wake_at = clock_timestamp() + make_interval(secs => %s) "
                "WHERE tenant_id = %s AND id = ANY(%s)",
                (seconds, self.tenant_id, [bell.run_id for bell in bells]),
            )

    def ring(self, batch: Batch) -> None:
        """Let the runs begin."""
        for bell in batch.bells:
            self.bell.ring(bell)

    async def wait(self, batch: Batch, timeout_s: float, every_s: float = 0.2) -> int:
        """Wait until all runs have ended; returns how often it asked."""
        query: LiteralString = (
            "SELECT count(*) AS n FROM runs WHERE created_by = %s AND finished_at IS NOT NULL"
        )
        deadline = time.monotonic() + timeout_s
        async with await self._look() as conn:
            for asked in itertools.count(1):
                row = await (await conn.execute(query, (batch.label,))).fetchone()
                ended = row["n"] if row else 0
                if ended >= len(batch.bells):
                    return asked
                self.lab.check()
                if time.monotonic() > deadline:
                    raise BenchFailed(f"{ended} of {len(batch.bells)} runs ended in {timeout_s} s")
                await asyncio.sleep(every_s)
        raise AssertionError("counted to the end of all numbers")

    async def report(self, label: str, runs: int, steps: int) -> Report:
        """Read what happened, and check that `runs` runs made `steps` steps each, once."""
        async with await self._look() as conn:
            row = await (await conn.execute(_CHECK, {"label": label, "steps": steps})).fetchone()
        assert row is not None
        wanted = {
            "runs": runs,
            "succeeded": runs,
            "with_all_steps": runs,
            "checkpoints": runs * steps,
            "completed": runs * steps,
            "completed_once": runs * steps,
            "events_numbered": row["events"],
        }
        problems = [f"{k}: {row[k]} instead of {v}" for k, v in wanted.items() if row[k] != v]
        elapsed_s = (row["last_commit"] - row["first_start"]).total_seconds()
        return Report(
            steps=runs * steps,
            committed=row["checkpoints"],
            elapsed_s=elapsed_s,
            claims=int(row["claims"]),
            recovered=int(row["recovered"]),
            problems=tuple(problems),
        )

    async def rows(
        self, query: LiteralString, params: Sequence[object] | Mapping[str, object]
    ) -> list[dict[str, Any]]:
        """Run a query with Postgres' own choice of plan."""
        async with await self._look() as conn:
            return await (await conn.execute(query, params)).fetchall()

    async def _look(self) -> psycopg.AsyncConnection[dict[str, Any]]:
        return await psycopg.AsyncConnection.connect(
            self.lab.database_url, autocommit=True, row_factory=dict_row
        )

    async def once(self, agent: str, count: int, label: str, timeout_s: float = 120) -> Batch:
        """Submit runs, ring for them and wait for their end."""
        batch = await self.submit(agent, count, label)
        await self.refresh(batch)
        self.ring(batch)
        await self.wait(batch, timeout_s)
        return batch


@asynccontextmanager
async def open_load(lab: Lab) -> AsyncIterator[Load]:
    """Make the tenant of a lab and connect as the API does."""
    bell = Bell(make_app(lab.settings))
    try:
        async with connected(lab.settings, lab.worker_database_url) as (db, tenant_id):
            yield Load(lab, db, bell, tenant_id)
    finally:
        await asyncio.to_thread(bell.close)


@asynccontextmanager
async def connected(settings: Settings, url: str) -> AsyncIterator[tuple[Database, UUID]]:
    """Connect to a lab's database; gives it with the id of the tenant, which is made if missing."""
    async with Database(url, settings.database, name="bench") as db:
        await db.ready()
        async with db.transaction() as conn:
            row = await ensure_tenant(conn, settings, "default", db.timeout_s)
        yield db, row["tenant_id"]
