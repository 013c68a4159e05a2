"""Tools steps of a test: a model's answer with calls of any arguments, and the ways to run it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from harness_common.contracts.tool import EffectClass, Tool
from harness_common.core.inputs import OwnerLost
from harness_common.core.message import Message, ToolUse
from harness_common.core.step import ModelAnswered
from harness_common.settings import Settings, ToolSettings
from harness_common.store.connection import Connection
from harness_common.store.db import Database
from harness_worker.advance import answer
from harness_worker.runtime import Runtime
from harness_worker.tools.breakers import Breakers
from tests.store.play import Play, sql
from tests.worker.runtime import make_runtime, make_tool

SCHEMA = {"type": "object", "properties": {"x": {}, "i": {"type": "integer"}}}


class Crash(BaseException):
    """The death of the process, which nothing in it can answer."""


class CountingDatabase(Database):
    """Counts how often a connection is lent: each time is one round trip of a step."""

    lent = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        self.lent += 1
        async with super().connection() as conn:
            yield conn


def a_tool(name: str, effect: str, fn: Any, **fields: Any) -> Tool:
    """Make a tool with these fields of its specification."""
    made = make_tool(name, EffectClass(effect), fn)
    return replace(made, spec=replace(made.spec, **{"input_schema": SCHEMA} | fields))


def asks(*calls: tuple[str, dict[str, Any]]) -> ModelAnswered:
    """Build a model's answer that asks for these calls."""
    uses = tuple(ToolUse(f"call_{i}", name, args) for i, (name, args) in enumerate(calls))
    return ModelAnswered(Message("assistant", uses), "tool_calls", "scripted/x", 3, 2)


async def allow_tools(db: Database, names: Sequence[str]) -> None:
    """Let the agents of the test use these tools."""
    await sql(
        db,
        "UPDATE agents SET spec = jsonb_set(spec, '{tools}', to_jsonb(cast(:n AS text[])))",
        n=list(names),
    )


async def a_worker(db: Database, tools: Sequence[Tool], **tool_settings: Any) -> Runtime:
    """Make a worker whose agent may use these tools."""
    runtime = await make_runtime(db, tools=tools)
    runtime.settings = Settings(worker=runtime.settings.worker, tool=ToolSettings(**tool_settings))
    runtime.breakers = Breakers(db, None, runtime.clock.now, runtime.settings.tool)
    await allow_tools(db, runtime.catalog.local.names())
    return runtime


async def asked(play: Play, *calls: tuple[str, dict[str, Any]], **more: Any) -> UUID:
    """Start a run whose model has asked for these calls."""
    run_id = await play.start(**more)
    await play.step(run_id, asks(*calls))
    return run_id


async def work(runtime: Runtime, play: Play, run_id: UUID) -> list[dict[str, Any]]:
    """Run the step that is due, and return the ledger."""
    version = (await play.read(run_id)).version
    await answer(runtime, play.tenant_id, run_id, version)
    return await play.calls(run_id)


async def die(play: Play, run_id: UUID) -> None:
    """Let the scheduler find that the run's owner is dead."""
    assert await play.apply(await play.read(run_id), OwnerLost("w", "killed")) is not None


async def events(play: Play, run_id: UUID, prefix: str = "tool.") -> list[dict[str, Any]]:
    """Return the run's events of these names, in order."""
    rows = await sql(
        play.db, "SELECT type, step, payload FROM events WHERE run_id = :r ORDER BY seq", r=run_id
    )
    return [row for row in rows if row["type"].startswith(prefix)]
