"""Agents of OpenAI Agents as runs: a turn a step, function tools once at most."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from agents import ModelSettings
from agents import Usage as AgentsUsage
from agents.models.interface import Model as AgentsModel
from openai.types.responses import ResponseFunctionToolCall

from harness_api.client import AsyncClient
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.model import ChatResult, Usage
from harness_common.core.budget import Limits, Spent
from harness_common.core.errors import Limited, Permanent, Transient
from harness_common.core.inputs import StepFailed
from harness_common.core.message import Message, Text, ToolUse
from harness_common.core.retry import classify
from harness_common.core.run import RunState, Status
from harness_common.core.step_rules import step_failed
from harness_common.settings import FrameworkSettings
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_common.store.foreign import ForeignStore
from harness_worker.frameworks.agents_model import OurModel, Turns, _response, messages_of
from harness_worker.frameworks.agents_tools import _behind_the_ledger
from harness_worker.frameworks.calls import CURRENT, WITHIN
from harness_worker.models.scripted import Scripted
from tests.faces import graphs
from tests.faces.worker import working
from tests.store.play import sql

NOTE = {"name": "note", "input": {"line": "x"}}
LOOK = {"name": "look", "input": {"what": "y"}}


@pytest.fixture
def config(config):
    made = FrameworkSettings(agents={"noter": "tests.faces.oa_agents:noter"})
    return config.model_copy(update={"frameworks": made})


@pytest.fixture
async def worker(db, redis, config, app):
    async with working(db, redis, config) as made:
        yield made


@pytest.fixture
async def client(url, tenant, worker, tmp_path, monkeypatch):
    monkeypatch.setenv("FACES_EFFECTS", str(tmp_path / "effects"))
    (tmp_path / "effects").touch()
    async with AsyncClient(url, tenant.keys["admin"]) as made:
        yield made


@pytest.fixture
def agent(db, tenant):
    async def make(*script, **more) -> str:
        spec = AgentSpec(
            kind="openai_agents",
            foreign={"name": "noter"},
            model="scripted/x",
            model_options={"script": list(script)},
            **more,
        )
        await put_agent(db, tenant.id, "o", spec, Actor("test"))
        return "o"

    return make


async def test_a_turn_a_step(client, agent):
    await agent({"tools": [LOOK, NOTE]}, {"text": "done: {{last_result}}"})
    run = await client.runs.create("o", "hi")
    run = await client.runs.wait(run.id, 60)
    assert (run.status, run.output) == ("succeeded", "done: x"), run.error
    assert [s.kind async for s in client.runs.steps(run.id)] == ["openai_agents"] * 2
    calls = [c async for c in client.runs.tool_calls(run.id)]
    assert {(c.call, c.tool, c.effect, c.status) for c in calls} == {
        ("1.0", "look", "read", "succeeded"),
        ("1.1", "note", "write", "succeeded"),
    } or {c.tool for c in calls} == {"look", "note"}
    assert graphs.effects().read_text() == "x\n"
    assert run.usage.output_tokens > 0


async def test_a_hand_off(client, agent):
    await agent({"tools": [{"name": "transfer_to_closer", "input": {}}]}, {"text": "closed"})
    run = await client.runs.create("o", "hi")
    run = await client.runs.wait(run.id, 60)
    assert (run.status, run.output) == ("succeeded", "closed"), run.error
    told = [e.payload async for e in client.runs.events(run.id) if e.type == "step.completed"]
    assert [(t["agent"], t["last_agent"]) for t in told] == [
        ("noter", "closer"),
        ("closer", "closer"),
    ]


async def test_an_approval_stands_before_a_function_tool(client, agent):
    await client.policy.set("rules: [{name: r, match: {tools: [note]}, then: ask}]")
    await agent({"tools": [LOOK, NOTE]}, {"text": "done"})
    run = await client.runs.create("o", "hi")
    run = await client.runs.wait(run.id, 60)
    assert run.status == "waiting_approval", run.error
    assert graphs.effects().read_text() == ""
    (asked,) = [a async for a in client.approvals.list(status="pending")]
    await client.approvals.approve(asked.id, asked.digest)
    run = await client.runs.wait(run.id, 60)
    assert (run.status, run.output) == ("succeeded", "done"), run.error
    assert graphs.effects().read_text() == "x\n"


async def test_a_turn_that_is_done_anew_asks_no_model_and_repeats_no_effect(
    client, agent, db, worker, monkeypatch
):
    """The process dies after the effect and before the turn's commit."""
    whole, asked, dies = Scripted.chat, [], [True]

    async def chat(self, request, on_delta=None):
        asked.append(request.step)
        return await whole(self, request, on_delta)

    put = ForeignStore.put

    async def put_or_die(self, place, blob, meta, **more):
        if dies and not place.ns:
            dies.clear()
            await asyncio.Event().wait()
        await put(self, place, blob, meta, **more)

    monkeypatch.setattr(Scripted, "chat", chat)
    monkeypatch.setattr(ForeignStore, "put", put_or_die)
    await agent({"tools": [NOTE]}, {"text": "done"})
    run = await client.runs.create("o", "hi")
    async with asyncio.timeout(60):
        while dies:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    for step in list(worker._steps):
        step.cancel()
    await sql(db, "UPDATE runs SET claim_id = NULL, claimed_by = NULL")
    run = await client.runs.wait(run.id, 60)
    assert (run.status, run.output) == ("succeeded", "done"), run.error
    assert graphs.effects().read_text() == "x\n"
    assert asked == [1, 2], "the first answer was on record"


class Kept:
    """The answers of a turn, as the store keeps them."""

    def __init__(self):
        self.rows = {}

    async def writes(self, place):
        del place
        return [
            {"task_id": task, "channel": channel, "snapshot": blob.data}
            for task, writes in self.rows.items()
            for _, channel, blob in writes
        ]

    async def put_writes(self, place, task_id, path, writes):
        del place, path
        self.rows[task_id] = writes


class Echo(AgentsModel):
    """Answers with what it was asked."""

    async def get_response(self, *asked, **more):
        text: Any = asked[0]
        return _response(ChatResult(Message("assistant", (Text(text),)), Usage(), "stop", "m"), 1)

    def stream_response(self, *args, **more):
        raise NotImplementedError


async def test_agents_side_by_side_have_records_of_their_own():
    """The first of two has ended when the process dies: the other is not given its answer."""
    store: Any = Kept()

    async def within(turns, call):
        WITHIN.set(f"{call}/")
        return (await turns.answer(Echo(), f"of {call}")).output[0].content[0].text

    before = Turns(store, "t", 1)
    for call in ("call_a", "call_b"):
        assert await asyncio.create_task(within(before, call)) == f"of {call}"
    again = Turns(store, "t", 1)
    assert await asyncio.create_task(within(again, "call_b")) == "of call_b"


async def test_arguments_that_cannot_be_read_are_no_call_without_any():
    class Cut(Scripted):
        async def chat(self, request, on_delta=None):
            asked.append(request)
            use = ToolUse("c", "note", {}, raw='{"line": "x')
            return ChatResult(Message("assistant", (use,)), Usage(), "tool_calls", "m")

    async def never(ctx, arguments):
        raise AssertionError(arguments)

    async def sample(model, request):
        return await model.chat(request)

    asked: list[Any] = []
    nobody: Any = None
    model = OurModel(Cut("x"), "scripted/x", AgentSpec(temperature=1.0), 3, sample)
    settings = ModelSettings(temperature=0.0)
    answer = await model.get_response(None, "hi", settings, [], None, [], None)
    assert asked[0].temperature == 0.0
    (call,) = answer.output
    assert isinstance(call, ResponseFunctionToolCall)
    (back,) = messages_of([call.model_dump()])
    assert back.tool_uses()[0].raw == '{"line": "x'
    calls: Any = object()
    token = CURRENT.set(calls)
    try:
        said = await _behind_the_ledger("note", never)(nobody, call.arguments)
    finally:
        CURRENT.reset(token)
    assert said.startswith("Error (INVALID_ARGUMENTS)")


async def test_what_our_models_cost_counts_and_their_limits_hold(client, agent, db, monkeypatch):
    whole, asked = Scripted.chat, []

    async def chat(self, request, on_delta=None):
        asked.append(request.step)
        if len(asked) == 1:
            raise Limited("later", retry_after_s=0.2, scope=self.scope)
        return replace(await whole(self, request, on_delta), cost_usd=0.25)

    monkeypatch.setattr(Scripted, "chat", chat)
    await agent({"tools": [LOOK]}, {"text": "done"})
    run = await client.runs.create("o", "hi")
    run = await client.runs.wait(run.id, 60)
    assert (run.status, run.output) == ("succeeded", "done"), run.error
    assert run.usage.cost_usd == 0.5
    assert asked == [1, 1, 2]
    assert await sql(db, "SELECT 1 FROM throttles WHERE scope = 'scripted:x:none'")


async def test_the_calls_of_several_turns_within_one_step_are_told_apart():
    """An agent that is a tool of another asks several times in a step, each time from call 0 on."""

    class Asks(Scripted):
        async def chat(self, request, on_delta=None):
            asked.append(request)
            use = ToolUse("c", "note", {"line": "x"})
            return ChatResult(Message("assistant", (use,)), Usage(), "tool_calls", "m")

    async def sample(model, request):
        return await model.chat(request)

    asked: list[Any] = []
    model = OurModel(Asks("x"), "scripted/x", AgentSpec(), 3, sample)
    items: list[Any] = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        answer = await model.get_response(None, items, ModelSettings(), [], None, [], None)
        (call,) = answer.output
        assert isinstance(call, ResponseFunctionToolCall)
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "ok"}
        items += [call.model_dump(), output]
    said = asked[-1].messages
    ids = [use.id for message in said for use in message.tool_uses()]
    assert len(set(ids)) == 2
    assert [b.tool_use_id for m in said if m.role == "tool" for b in m.content] == ids


async def test_what_was_answered_in_a_turn_that_fails_for_good_is_paid(client, agent, monkeypatch):
    """Also what an earlier attempt at the turn was answered."""
    whole, failures = Scripted.chat, [Transient("later"), Permanent("no", code="FULL")]

    async def chat(self, request, on_delta=None):
        return replace(await whole(self, request, on_delta), cost_usd=0.25)

    async def refuse(self, place, blob, meta, **more):
        raise failures.pop(0)

    monkeypatch.setattr(Scripted, "chat", chat)
    monkeypatch.setattr(ForeignStore, "put", refuse)
    await agent({"text": "done"}, retry={"base_s": 0.05})
    run = await client.runs.create("o", "hi")
    run = await client.runs.wait(run.id, 60)
    assert (run.status, run.error["code"]) == ("failed", "FULL")
    assert run.usage.cost_usd == 0.25


async def test_a_model_of_another_provider_is_given_none_of_the_agents_options():
    asked: list[Any] = []

    async def sample(model, request):
        asked.append(request)
        return ChatResult(Message("assistant", (Text("hi"),)), Usage(), "stop", "m")

    spec = AgentSpec(model="openai/gpt-5-mini", model_options={"reasoning_effort": "low"})
    for name in ("openai/gpt-5", "anthropic/claude-x"):
        model = OurModel(Scripted("x"), name, spec, 1, sample)
        await model.get_response(None, "hi", ModelSettings(), [], None, [], None)
    assert [dict(one.options) for one in asked] == [{"reasoning_effort": "low"}, {}]


async def test_a_budget_holds_between_the_answers_of_one_turn():
    """An agent within a tool asks as often as it likes."""

    class Paid(Echo):
        async def get_response(self, *asked, **more):
            answer = await super().get_response(*asked, **more)
            return replace(answer, usage=AgentsUsage(requests=1, input_tokens=2, output_tokens=1))

    store: Any = Kept()
    turns = Turns(store, "t", 1, limits=Limits(max_tokens=8), before=Spent(2, 1))
    for _ in range(2):
        await turns.answer(Paid(), "hi")
    with pytest.raises(Permanent, match="budget") as caught:
        await turns.answer(Paid(), "hi")
    failed = StepFailed(classify(caught.value), datetime.now(UTC))
    state = RunState(status=Status.RUNNING, claimed=True, started=True)
    assert (
        step_failed(state, failed, failed.started_at).state.stop_reason == "token_budget_exceeded"
    )
