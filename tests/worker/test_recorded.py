"""A dry run answers model and tools from the record: nothing outside is called."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_common.commands import ForkRun, fork_run
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.contract import ContractSpec
from harness_common.contracts.model import ChatRequest
from harness_common.contracts.tool import EffectClass, ToolContext
from harness_common.core.guidance import Guidance
from harness_common.core.run import Status
from harness_common.store import json_codec
from harness_worker.advance import answer
from tests.store.play import ran, say, sql
from tests.worker.runtime import make_runtime, make_tool


async def refuse_chat(request: ChatRequest) -> None:
    raise AssertionError(f"a dry run called the model: {request.model}")


async def refuse(ctx: ToolContext, i: int) -> str:
    raise AssertionError(f"a dry run called a tool: {ctx.call_id} {i}")


@pytest.fixture
async def runtime(db):
    """Make a worker whose model and tools fail whoever calls them."""
    look = make_tool("look", EffectClass.WRITE, refuse)
    return await make_runtime(db, chat=refuse_chat, tools=[look])


async def dry(play, source):
    request = ForkRun(step=0, dry_run=True, created_by="ann")
    return (await fork_run(play.db, play.tenant_id, source, request)).run_id


async def run_to_its_end(play, runtime, run_id):
    for _ in range(10):
        run = await play.read(run_id)
        if run.state.status is not Status.RUNNING:
            return run
        await answer(runtime, play.tenant_id, run_id, run.version)
    raise AssertionError("it did not end")


async def test_a_dry_run_comes_to_the_same_end_without_a_call(play, runtime):
    source = await play.start("q")
    await play.step(source, say("first", tools=["look", "look"]))
    await play.step(source, ran("one", "two"))
    await play.step(source, say("the end"))
    made = await dry(play, source)
    run = await run_to_its_end(play, runtime, made)
    assert (run.state.status, run.state.output) == (Status.SUCCEEDED, "the end")
    assert await play.messages(made) == await play.messages(source)
    assert (run.state.input_tokens, run.state.cost_usd) == (0, 0)
    await play.check_whole(made)


async def test_a_call_that_is_not_on_record_is_told_so_and_not_made(play, runtime):
    source = await play.start("q")
    await play.step(source, say("first", tools=["look"]))
    await play.step(source, ran("one"))
    await play.step(source, say("the end"))
    await sql(play.db, "UPDATE tool_calls SET name = 'other' WHERE run_id = :r", r=source)
    made = await dry(play, source)
    await run_to_its_end(play, runtime, made)
    (call,) = await play.calls(made)
    assert (call["status"], call["error_type"]) == ("failed", "NOT_RECORDED")


async def test_a_record_that_stops_early_fails_the_dry_run(play, runtime):
    source = await play.start("q")
    await play.step(source, say("first", tools=["look"]))
    await play.step(source, ran("one"))
    await sql(play.db, "UPDATE runs SET status = 'failed' WHERE id = :r", r=source)
    made = await dry(play, source)
    run = await run_to_its_end(play, runtime, made)
    assert (run.state.status, run.state.error["code"]) == (Status.FAILED, "NOT_RECORDED")


FORM = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}


async def classifier(play, **more):
    spec = AgentSpec(output_schema=FORM, max_turns=1000, **more)
    await sql(
        play.db,
        "UPDATE agents SET spec = cast(:s AS jsonb)",
        s=json_codec.dumps_text(spec.model_dump(mode="json")),
    )


async def test_a_dry_run_gives_the_output_in_its_form(play, runtime):
    await classifier(play)
    source = await play.start("q")
    asked_again = replace(say("I think it is a bug."), guidance=Guidance(again=True))
    await play.step(source, asked_again)
    await play.step(source, say("```json\n{'label': 'bug',}\n```"))
    made = await dry(play, source)
    run = await run_to_its_end(play, runtime, made)
    assert (run.state.status, run.state.output) == (Status.SUCCEEDED, '{"label":"bug"}')
    (told,) = [e["payload"] for e in await play.events(made) if e["type"] == "answer.repaired"]
    assert told["of"] == "output"
    await play.check_whole(made)


async def test_a_dry_run_of_a_run_that_never_found_the_form_ends_as_it_did(play, runtime):
    await classifier(play)
    source = await play.start("q")
    stop = Guidance(stop="contract_violated", error={"code": "CONTRACT_VIOLATED"})
    await play.step(source, replace(say("I think it is a bug."), guidance=stop))
    run = await run_to_its_end(play, runtime, await dry(play, source))
    assert (run.state.status, run.state.stop_reason) == (Status.FAILED, "contract_violated")
    assert run.state.output is None


async def test_a_dry_run_reads_what_was_asked_for_by_text_as_it_was_read(play, runtime):
    """An action that holds the answer, and one that says that the answer comes next."""
    await classifier(play, tools=("look",), contract=ContractSpec(actions="always"))
    action = '{"thought": "t", "action": {"name": "respond_directly", "input": %s}}'
    source = await play.start("q")
    await play.step(source, replace(say(action % "{}"), guidance=Guidance(again=True)))
    await play.step(source, say('{"label": "bug"}'))
    run = await run_to_its_end(play, runtime, await dry(play, source))
    assert (run.state.status, run.state.output) == (Status.SUCCEEDED, '{"label":"bug"}')
    given = await play.start("q")
    await play.step(given, say(action % '{"answer": {"label": "bug"}}'))
    run = await run_to_its_end(play, runtime, await dry(play, given))
    assert (run.state.status, run.state.output) == (Status.SUCCEEDED, '{"label":"bug"}')
