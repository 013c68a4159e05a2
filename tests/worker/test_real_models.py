"""Whole runs over the real providers against a server on loopback: forced tools, reasoning that
goes back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_common.contracts.agent import AgentSpec
from harness_common.core.message import user
from harness_common.core.run import Status
from harness_common.settings import ModelSettings
from harness_worker.steps.tool_choice import tool_choice
from tests.fakes.openai_server import Answer, FakeOpenAI
from tests.fakes.responses_form import call_item, created, ended, reasoning_item, text_item
from tests.store.play import say
from tests.worker.real_models import agent_is, run_to_its_end, worker_of
from tests.worker.runtime import claim_tools_step, make_runtime

CALL = Answer(pieces=("I add.",), tools=(("add", '{"a": 2, "b": 3}'),))
NAMED = {
    "openai": {"type": "function", "function": {"name": "add"}},
    "openai-responses": {"type": "function", "name": "add"},
}


@pytest.mark.parametrize("provider", NAMED)
async def test_a_tool_is_forced_at_the_first_answer_only(db, play, provider):
    async with FakeOpenAI() as server, worker_of(db, server.base_url) as runtime:
        server.answers.append(CALL)
        choice = {"first": "add", "each": "none"}
        await agent_is(db, model=f"{provider}/m", tools=["add"], tool_choice=choice)
        run_id = await play.start("What is 2 + 3?")
        run = await run_to_its_end(play, runtime, run_id)
        assert (run.state.status, run.state.output) == (Status.SUCCEEDED, "Hello there.")
        assert [r["body"]["tool_choice"] for r in server.requests] == [NAMED[provider], "none"]
        (call,) = await play.calls(run_id)
        assert (call["status"], call["result"]) == ("succeeded", "5")
        await play.check_whole(run_id)


async def test_the_first_answer_is_the_runs_and_not_that_of_what_a_compaction_left(db, play):
    runtime = await make_runtime(db)
    run_id = await play.start("What is 2 + 3?")
    spec = AgentSpec(tools=("add",), tool_choice={"first": "required", "each": "none"})
    chosen = []
    for _ in range(2):
        ctx = await claim_tools_step(runtime, play, run_id)
        chosen.append(tool_choice(replace(ctx, spec=spec, messages=(user("[a summary]"),)), ()))
        await play.settle(ctx.run, say(tools=("add",)))
    assert chosen == ["required", "none"]


@pytest.mark.parametrize("provider", NAMED)
async def test_without_a_choice_none_is_sent(db, play, provider):
    async with FakeOpenAI() as server, worker_of(db, server.base_url) as runtime:
        await agent_is(db, model=f"{provider}/m", tools=["add"])
        await run_to_its_end(play, runtime, await play.start("Hello?"))
        assert "tool_choice" not in server.requests[0]["body"]


async def test_reasoning_goes_back_through_the_database_as_it_came(db, play):
    thought = reasoning_item(1, "gAAA+/=é", later={"z": 1, "a": 2})
    output = (thought, text_item("I add."), call_item(1, "add", '{"a": 2, "b": 3}'))
    async with FakeOpenAI() as server, worker_of(db, server.base_url) as runtime:
        server.answers.append(Answer(raw=(created(), ended(output))))
        await agent_is(db, model="openai-responses/gpt-5-mini", tools=["add"])
        run_id = await play.start("What is 2 + 3?")
        run = await run_to_its_end(play, runtime, run_id)
        assert run.state.status is Status.SUCCEEDED
        sent = server.requests[1]["body"]["input"]
        assert list(sent[1].items()) == list(thought.items())
        assert [i.get("type") for i in sent] == [
            "message", "reasoning", "message", "function_call", "function_call_output",
        ]  # fmt: skip
        assert sent[-1]["output"] == "5"


async def test_what_a_model_accepts_is_said_in_a_file(db, play, tmp_path):
    own = tmp_path / "capabilities.json"
    own.write_text('{"models": {"openai/mine*": {"temperature": false, "max_output_tokens": 99}}}')
    settings = ModelSettings(capabilities=own)
    async with (
        FakeOpenAI() as server,
        worker_of(db, server.base_url, model=settings) as runtime,
    ):
        await agent_is(db, model="openai/mine-7b", temperature=0.1)
        await run_to_its_end(play, runtime, await play.start("Hello?"))
        body = server.requests[0]["body"]
        assert "temperature" not in body
        assert body["max_tokens"] == 99
