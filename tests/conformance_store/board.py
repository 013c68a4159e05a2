"""Playing runs against any store: with nothing but commands, reads and statements by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from harness_common.contracts.agent import AgentSpec
from harness_common.core.inputs import Input, StepDone
from harness_common.core.message import Message, from_json
from harness_common.core.run import Status
from harness_common.core.step import StepResult
from harness_common.settings import SchedulerSettings, Settings
from harness_common.store import json_codec, keys, run_reads
from harness_common.store.agents import put_agent
from harness_common.store.apply import group_commit, settle
from harness_common.store.audit import Actor
from harness_common.store.bootstrap import ensure_tenant
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun
from harness_common.store.writes import Applied, NextClaim, StepRecord
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Loop, Shared
from harness_worker.scheduler.service import tick
from tests.store.play import WHEN, Play
from tests.worker.runtime import FakeBell, FakeLeases

ALL = 1_000_000


async def make_tenant(db: Database, name: str, *, slots: int = 100) -> UUID:
    """Make a tenant that may run so many runs at once, with an agent `a`."""
    settings = Settings(scheduler=SchedulerSettings(tenant_max_running=slots))
    async with db.transaction() as conn:
        row = await ensure_tenant(conn, settings, name, db.timeout_s)
    tenant_id: UUID = row["tenant_id"]
    body = [{"tenant_id": tenant_id, "granted": slots, "crowded": False, "given": False}]
    await db.fetch("slots_write", {"slots": json_codec.dumps_text(body)})
    await put_agent(db, tenant_id, "a", AgentSpec(max_turns=1000), Actor("test"))
    return tenant_id


@dataclass
class Board(Play):
    """Runs of one tenant, in any store."""

    async def now(self) -> datetime:
        """Return the store's time."""
        (row,) = await self.db.fetch("slots_take", {"tenants": [self.tenant_id]})
        at: datetime = row["now"]
        return at

    async def register(self, worker: UUID, *, concurrency: int = 200) -> UUID:
        """Announce a worker process."""
        params = {
            "worker": worker, "name": f"w-{worker.hex[:4]}", "host": "h", "pid": 1,
            "queues": ["steps.default"], "concurrency": concurrency, "version": "", "plugins": "[]",
        }  # fmt: skip
        await self.db.fetch("worker_register", params)
        return worker

    async def make_key(self, role: str = "admin") -> str:
        """Make an API key; return who starts a run with it."""
        async with self.db.tenant_transaction(self.tenant_id) as conn:
            new = keys.NewKey("k", role)
            row, _ = await keys.insert_key(conn, self.tenant_id, b"p", new, self.db.timeout_s)
        return f"key_{row['id'].hex}"

    async def agent(self, name: str, **fields: Any) -> int:
        """Define an agent; return its version."""
        spec = AgentSpec.model_validate({"max_turns": 1000} | fields)
        row, _ = await put_agent(self.db, self.tenant_id, name, spec, Actor("test"))
        return int(row["version"])

    async def settle(
        self,
        run: StoredRun,
        one: Input | StepResult,
        *,
        keep: NextClaim | None = None,
        db: Database | None = None,
        patience_s: float = 60.0,
    ) -> Applied:
        is_result = isinstance(one, StepResult)
        done: Input = StepDone(one, WHEN) if is_result else one  # type: ignore[assignment,arg-type]
        now = await self.now()
        record = StepRecord(now, run.claimed_by or self.worker)
        return await settle(
            db or self.db, group_commit(db or self.db), run, [done],
            now=now, step=record, keep=keep, patience_s=patience_s,
        )  # fmt: skip

    async def events(self, run_id: UUID) -> list[Row]:
        page = await run_reads.read_events(self.db, self.tenant_id, run_id, after=0, limit=ALL)
        return page.events

    async def types(self, run_id: UUID) -> list[str]:
        return [event["type"] for event in await self.events(run_id)]

    async def checkpoints(self, run_id: UUID) -> list[Row]:
        return await run_reads.read_checkpoints(self.db, self.tenant_id, run_id, after=0, limit=ALL)

    async def calls(self, run_id: UUID) -> list[Row]:
        return await run_reads.read_tool_calls(self.db, self.tenant_id, run_id, limit=ALL)

    async def messages(self, run_id: UUID) -> list[Message]:
        rows = await run_reads.read_messages(self.db, self.tenant_id, run_id, after=0, limit=ALL)
        return [from_json(row["body"]) for row in rows]

    async def slots(self) -> Row:
        """Return the tenant's slots."""
        (row,) = await self.db.fetch("slots_take", {"tenants": [self.tenant_id]})
        return row

    async def running(self) -> int:
        return int((await self.slots())["running"])

    async def view(self, run_id: UUID) -> Row:
        return await run_reads.view_run(self.db, self.tenant_id, run_id)

    async def status(self, run_id: UUID) -> Status:
        return (await self.read(run_id)).state.status

    async def check_whole(self, run_id: UUID) -> None:
        """Compare what holds of every run: events without a gap (INV5), each step once (INV2)."""
        run, row = await self.read(run_id), await self.view(run_id)
        seqs = [e["seq"] for e in await self.events(run_id)]
        assert seqs == list(range(1, row["next_seq"]))
        steps = [c["step"] for c in await self.checkpoints(run_id) if c["kind"] != "fork"]
        assert steps == list(range(1, run.state.step + 1))[-len(steps) :] if steps else True
        assert len(await self.messages(run_id)) == run.state.messages

    async def statement(self, name: str, /, **params: Any) -> list[Row]:
        """Run a statement that names the tenant."""
        return await self.db.fetch(name, {"tenant_id": self.tenant_id} | params)

    async def in_transaction(self, name: str, params: Row) -> list[Row]:
        """Run a statement in a transaction of the tenant."""
        async with self.db.tenant_transaction(self.tenant_id) as conn:
            return await run_sql(conn, name, params, self.db.timeout_s)

    async def shared(self, **more: Any) -> Shared:
        """Become leader; return what the scheduler's loops share."""
        term = await Leadership(self.db, self.worker, "t", 60).seek()
        assert term is not None
        bell: Any = FakeBell()
        leases: Any = FakeLeases()
        return Shared(Settings(), self.db, None, leases, bell, term, **more)


async def tick_all(shared: Shared, loops: Sequence[Loop]) -> int:
    """Let the loops run until they have nothing more to do; return how much they did."""
    total = 0
    for _ in range(20):
        _, done = await tick(shared, list(loops))
        total += done
        if not done:
            break
    return total
