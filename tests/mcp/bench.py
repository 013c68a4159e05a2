"""Runs whose calls go to MCP servers, with worker processes in place of one another."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from harness_common.blobs.local import LocalBlobs
from harness_common.commands.control import answer_run
from harness_common.core.ids import encode
from harness_common.core.inputs import Admit
from harness_common.core.message import Message, ToolResult, ToolUse
from harness_common.core.run import Status
from harness_common.core.step import ModelAnswered
from harness_common.settings import McpSettings
from harness_common.store import mcp_servers as store
from harness_common.store.audit import Actor
from harness_common.store.db import Database
from harness_common.store.mcp_tools import record_list
from harness_worker.advance import answer
from harness_worker.mcp.pool import Outside, Pool
from harness_worker.mcp.source import McpTools
from harness_worker.runtime import Runtime
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.registry import ToolRegistry, check_foreign_spec
from tests.store.play import Play, make_key, sql
from tests.worker.runtime import make_runtime

HERE = Path(__file__).parent
ME = Actor("test")


async def plain_client(tenant_id: UUID) -> httpx.AsyncClient:
    """Return a client that goes anywhere."""
    del tenant_id
    return httpx.AsyncClient(trust_env=False)


class Secrets:
    """Secrets of tests: `secret://name` is `value of name`."""

    async def resolve(self, tenant_id: Any, text: str) -> str:
        del tenant_id
        return text.replace("secret://", "value-of-")


def asking(state: Path, *more: str) -> dict[str, Any]:
    """Return the target of the server of `asking_server.py`."""
    return {
        "command": [
            sys.executable,
            "-I",
            "-S",
            str(HERE / "asking_server.py"),
            "--state",
            str(state),
            *more,
        ]
    }


class Bench:
    """One tenant's servers, runs and workers."""

    def __init__(self, db: Database, play: Play, folder: Path) -> None:
        self.db, self.play, self.folder = db, play, folder
        self.state = folder / "state"
        self.pools: list[Pool] = []
        self._key = ""

    @property
    def tenant_id(self) -> Any:
        return self.play.tenant_id

    async def key(self) -> str:
        """Return who starts runs here: policy refuses the tools of servers to anybody unknown."""
        if not self._key:
            self._key = await make_key(self.db, self.tenant_id)
        return self._key

    def effects(self) -> list[str]:
        """Return what the server has noted."""
        return self.state.read_text().splitlines() if self.state.exists() else []

    async def declare(self, name: str, target: dict[str, Any], **more: Any) -> dict[str, Any]:
        declared = store.Declared(target, more.get("effects", {}), more.get("timeout_s"))
        row, _ = await store.put_server(self.db, self.tenant_id, name, declared, ME)
        return row

    async def worker(self, **settings: Any) -> Runtime:
        """Make a worker process."""
        runtime = await make_runtime(self.db)
        config = McpSettings(**{"commands": ("*",), "idle_s": 60, "connect_s": 60} | settings)
        outside = Outside(
            settings=config,
            homes=self.folder / "homes",
            client=plain_client,
            check=check_foreign_spec,
            record=partial(record_list, self.db),
            secrets=Secrets(),
        )
        self.pools.append(Pool(outside))
        runtime.mcp = source = McpTools(self.db, self.pools[-1])
        runtime.catalog = Catalog(ToolRegistry(), [source])
        runtime.blobs = LocalBlobs(self.folder / "blobs")
        return runtime

    async def close(self) -> None:
        for pool in self.pools:
            await pool.aclose()

    async def start(self, *calls: tuple[str, dict[str, Any]], tools: Any = None) -> Any:
        """Start a run whose model has asked for these calls."""
        await sql(
            self.db,
            "INSERT INTO agents (tenant_id, name, version, spec, digest, created_by) "
            "SELECT tenant_id, name, max(version) + 1, "
            "jsonb_set((array_agg(spec))[1], '{tools}', cast(:t AS jsonb)), '', '' "
            "FROM agents WHERE tenant_id = :i GROUP BY tenant_id, name",
            t=json.dumps(tools or [name for name, _ in calls]),
            i=self.tenant_id,
        )
        run_id = await self.play.start(created_by=await self.key())
        uses = tuple(ToolUse(f"call_{i}", name, args) for i, (name, args) in enumerate(calls))
        said = ModelAnswered(Message("assistant", uses), "tool_calls", "scripted/x", 1, 1)
        await self.play.step(run_id, said)
        return run_id

    async def step(self, run_id: Any, worker: Runtime) -> Status:
        """Let a worker do the next step of a run."""
        run = await self.play.read(run_id)
        if run.state.status is Status.QUEUED:
            await self.play.apply(run, Admit())
            run = await self.play.read(run_id)
        await answer(worker, self.tenant_id, run_id, run.version)
        return (await self.play.read(run_id)).state.status

    async def reply(self, run_id: Any, text: str) -> None:
        """Answer the question of a run, as a person does."""
        await answer_run(self.db, self.tenant_id, run_id, text=text, call=None, by="me")

    async def call(self, worker: Runtime, name: str, **arguments: Any) -> ToolResult:
        """Make one call in a run of its own and return what the model is told."""
        run_id = await self.start((name, arguments))
        await self.step(run_id, worker)
        return (await self.results(run_id))[0]

    async def results(self, run_id: Any) -> list[ToolResult]:
        message = (await self.play.messages(run_id))[-1]
        assert message.role == "tool", await self.failure(run_id)
        return [block for block in message.content if isinstance(block, ToolResult)]

    async def failure(self, run_id: Any) -> str:
        events = await self.play.events(run_id)
        return f"{encode('run', run_id)}: {[(e['type'], e['payload']) for e in events[-3:]]}"

    async def tools(self, name: str) -> dict[str, dict[str, Any]]:
        server = await store.read_server(self.db, self.tenant_id, name)
        rows = await store.list_tools(self.db, self.tenant_id, server["id"])
        return {row["name"]: row for row in rows}
