"""Graph runs of tests over the real store: their definition, a worker, and the ways to go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import yaml

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.tool import Tool
from harness_common.core.run import Status
from harness_common.settings import Settings, ToolSettings
from harness_common.store import json_codec
from harness_common.store.db import Database
from harness_worker.advance import answer
from harness_worker.runtime import Runtime
from harness_worker.tools.breakers import Breakers
from tests.store.play import Play, sql
from tests.worker.runtime import Chat, make_runtime, say_nothing


async def graph_worker(
    db: Database,
    text: str,
    tools: Sequence[Tool] = (),
    *,
    chat: Chat = say_nothing,
    spec: dict[str, Any] | None = None,
    **tool_settings: Any,
) -> Runtime:
    """Make the agent `a` of every tenant this graph, and a worker that has these tools."""
    graph = yaml.safe_load(text)
    more = {"model": "fake/x"} | (spec or {})
    whole = AgentSpec.model_validate({"kind": "graph", "graph": graph} | more)
    await sql(
        db,
        "UPDATE agents SET spec = cast(:s AS jsonb)",
        s=json_codec.dumps_text(whole.model_dump(mode="json", by_alias=True)),
    )
    runtime = await make_runtime(db, tools=tools, chat=chat)
    runtime.settings = Settings(worker=runtime.settings.worker, tool=ToolSettings(**tool_settings))
    runtime.breakers = Breakers(db, None, runtime.clock.now, runtime.settings.tool)
    return runtime


async def step(runtime: Runtime, play: Play, run_id: UUID) -> Status:
    """Run the step that is due."""
    version = (await play.read(run_id)).version
    await answer(runtime, play.tenant_id, run_id, version)
    return (await play.read(run_id)).state.status


async def go_on(runtime: Runtime, play: Play, run_id: UUID, most: int = 50) -> Status:
    """Run steps until the run waits or is over."""
    for _ in range(most):
        status = await step(runtime, play, run_id)
        if status is not Status.RUNNING:
            return status
    raise AssertionError("the run goes on and on")


async def node_events(play: Play, run_id: UUID, *names: str) -> list[tuple[str, str]]:
    """List the events of nodes, as (what happened, node)."""
    return [
        (e["type"].removeprefix("node."), e["payload"]["node"])
        for e in await play.events(run_id)
        if e["type"].startswith("node.") and (not names or e["type"][5:] in names)
    ]
