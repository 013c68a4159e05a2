"""What a model thinks is stored only for who asks for it; the run goes on all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.tool import EffectClass
from harness_common.settings import Settings
from harness_common.store import json_codec
from harness_worker.advance import answer
from harness_worker.models.http import shared_client
from harness_worker.models.registry import ModelRegistry
from tests.fakes.anthropic_server import (
    FakeAnthropic,
    end,
    head,
    start,
    stop,
    text_delta,
    thinking,
    tool_use,
)
from tests.fakes.openai_server import Answer
from tests.store.play import make_key, sql
from tests.worker.runtime import make_runtime, make_tool

CANARY = "canary-7431"
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 2048}}
TABLES = ("messages", "events", "runs", "tool_calls", "checkpoints", "inputs")


async def stored(db: Any) -> str:
    """Return everything that Postgres holds of runs, as text."""
    return "".join([str(await sql(db, f"SELECT t::text FROM {name} t")) for name in TABLES])


@pytest.mark.parametrize("keep", [False, True])
async def test_a_run_with_tools_stores_no_thought_unless_it_is_asked_to(play, db, keep):
    async def look(ctx: Any, i: int = 0) -> str:
        return "found"

    async with FakeAnthropic() as server, shared_client() as client:
        thought = thinking(0, f"I am thinking of {CANARY}.", "signature+1==")
        said = start(1, {"type": "text", "text": ""}) + text_delta(1, "done") + stop(1)
        server.answers += [
            Answer(raw=(head(), thought, tool_use(1, "look", '{"i": 1}'), end("tool_use"))),
            Answer(raw=(head(), thinking(0, f"{CANARY}!", "signature+2=="), said, end())),
        ]
        runtime = await make_runtime(db, tools=[make_tool("look", EffectClass("read"), look)])
        runtime.models = ModelRegistry(Settings(anthropic_base_url=server.base_url), client)
        spec = AgentSpec(
            model="anthropic/claude-sonnet-4-6",
            tools=("look",),
            model_options={**THINKS, "keep_reasoning": keep},
        )
        await sql(
            db,
            "UPDATE agents SET spec = cast(:s AS jsonb)",
            s=json_codec.dumps_text(spec.model_dump(mode="json")),
        )
        run_id = await play.start(created_by=await make_key(db, play.tenant_id))
        async with asyncio.timeout(60):
            while (run := await play.read(run_id)).state.status == "running":
                await answer(runtime, play.tenant_id, run_id, run.version)
        assert (run.state.status, run.state.output) == ("succeeded", "done")
        assert server.calls == 2, "the server that wants its thoughts back took both requests"
        everything = await stored(db)
        assert "found" in everything, "or the test looks at nothing"
        assert (CANARY in everything) == keep
        assert ("signature+1" in everything) == keep
        second = server.requests[1]["body"]
        assert (CANARY in str(second)) == keep
