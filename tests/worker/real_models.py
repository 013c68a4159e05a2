"""A worker of a test whose models are real providers, and an agent that may use one tool."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from harness_common.contracts.tool import EffectClass, Tool
from harness_common.core.run import Status
from harness_common.settings import Settings
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun
from harness_worker.advance import answer
from harness_worker.models.http import shared_client
from harness_worker.models.registry import ModelRegistry
from harness_worker.runtime import Runtime
from tests.store.play import Play, sql
from tests.worker.runtime import make_runtime
from tests.worker.tool_steps import a_tool

ADD_SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


async def _add(ctx: Any, a: int, b: int) -> str:
    del ctx
    return str(a + b)


def adder() -> Tool:
    """Make a tool that adds two numbers."""
    return a_tool("add", EffectClass.READ, _add, input_schema=ADD_SCHEMA)


@asynccontextmanager
async def worker_of(db: Database, base_url: str, **settings: Any) -> AsyncIterator[Runtime]:
    """Make a worker that asks the server at `base_url`, and can add."""
    runtime = await make_runtime(db, tools=[adder()])
    async with shared_client() as client:
        runtime.http = client
        runtime.models = ModelRegistry(Settings(openai_base_url=base_url, **settings), client)
        yield runtime


async def agent_is(db: Database, **fields: Any) -> None:
    """Change the agents of the test."""
    await sql(db, "UPDATE agents SET spec = spec || cast(:f AS jsonb)", f=json.dumps(fields))


async def run_to_its_end(play: Play, runtime: Runtime, run_id: UUID, steps: int = 20) -> StoredRun:
    """Run step after step; returns the run when it stands still."""
    for _ in range(steps):
        run = await play.read(run_id)
        if run.state.status is not Status.RUNNING:
            return run
        await answer(runtime, play.tenant_id, run_id, run.version)
    raise AssertionError("it did not end")
