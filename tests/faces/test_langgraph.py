"""LangGraph graphs as runs: one superstep a step, effects once, interrupts as questions."""

from __future__ import annotations

import asyncio
import json

import pytest

from harness_api.client import AsyncClient
from harness_common.contracts.agent import AgentSpec
from harness_common.core.errors import HarnessError
from harness_common.settings import FrameworkSettings
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from tests.faces import graphs
from tests.faces.worker import working

GRAPHS = {
    name: f"tests.faces.graphs:{name}"
    for name in ("chain", "parallel", "with_tool_node", "questions", "leave", "thinks")
}
TOOLS = (graphs.note, graphs.slow_note, graphs.look, graphs.risky)


@pytest.fixture
def config(config):
    return config.model_copy(update={"frameworks": FrameworkSettings(graphs=GRAPHS)})


@pytest.fixture
async def worker(db, redis, config, app):
    async with working(db, redis, config, TOOLS) as made:
        yield made


@pytest.fixture
async def client(url, tenant, worker, tmp_path, monkeypatch):
    monkeypatch.setenv("FACES_EFFECTS", str(tmp_path / "effects"))
    (tmp_path / "effects").touch()
    async with AsyncClient(url, tenant.keys["admin"]) as made:
        yield made


@pytest.fixture
def agent(db, tenant):
    async def make(graph: str, *tools: str, input: str = "messages", **more) -> str:
        spec = AgentSpec(
            kind="langgraph", foreign={"name": graph, "input": input}, tools=tools, **more
        )
        await put_agent(db, tenant.id, "g", spec, Actor("test"))
        return "g"

    return make


async def end(client, run_id):
    return await client.runs.wait(run_id, 60)


async def test_one_superstep_a_step(client, agent):
    await agent("chain", input="json")
    run = await client.runs.create("g", '{"n": 0}')
    run = await end(client, run.id)
    assert (run.status, json.loads(run.output)) == ("succeeded", {"n": 3})
    steps = [s async for s in client.runs.steps(run.id)]
    assert [s.kind for s in steps] == ["langgraph"] * 4, "the input, then three supersteps"
    told = [
        e.payload["nodes"] async for e in client.runs.events(run.id) if e.type == "step.completed"
    ]
    assert told == [[], ["add"], ["add"], ["add"]]


async def test_a_cap_on_supersteps(client, agent):
    await agent("chain", input="json", max_turns=2)
    run = await client.runs.create("g", '{"n": 0}')
    assert (await end(client, run.id)).stop_reason == "max_iterations_exceeded"


async def test_a_fork_goes_on_from_a_superstep(client, agent):
    await agent("chain", input="json")
    run = await client.runs.create("g", '{"n": 0}')
    await end(client, run.id)
    for step, left in ((2, 2), (0, 4)):
        fork = await client.runs.fork(run.id, step=step)
        fork = await end(client, fork.id)
        assert fork.status == "succeeded", fork.error
        assert json.loads(fork.output) == {"n": 3}
        kinds = [s.kind async for s in client.runs.steps(fork.id)]
        assert kinds.count("langgraph") == left


async def test_three_effects_side_by_side(client, agent):
    await agent("parallel", "slow_note", input="json")
    run = await client.runs.create("g", '{"items": ["1", "2", "3"]}')
    run = await end(client, run.id)
    assert json.loads(run.output)["done"] == ["1", "2", "3"]
    assert sorted(graphs.effects().read_text().split()) == ["1", "2", "3"]
    calls = [c async for c in client.runs.tool_calls(run.id)]
    assert {(c.tool, c.status, c.step) for c in calls} == {("slow_note", "succeeded", 2)}


async def test_interrupts_are_questions(client, agent):
    await agent("questions", "note")
    run = await client.runs.create("g", "hi")
    run = await end(client, run.id)
    assert run.status == "waiting_input"
    (asked,) = run.waiting["calls"]
    assert (asked["question"], asked["choices"]) == ("Who?", ["ann", "bob"])
    await client.runs.answer(run.id, "ann")
    run = await end(client, run.id)
    (asked,) = run.waiting["calls"]
    assert asked["question"] == "And then?"
    await client.runs.answer(run.id, "carol")
    run = await end(client, run.id)
    assert (run.status, run.output) == ("succeeded", "ann and carol")
    assert graphs.effects().read_text() == "hello ann\n", "the node ran again, its effect did not"


async def test_the_tokens_of_a_superstep_that_waits_are_counted(client, agent):
    """A node that finished is not run again; the one that asked is, and asks its model again."""
    await agent("thinks")
    run = await client.runs.create("g", "hi")
    run = await end(client, run.id)
    assert run.status == "waiting_input"
    assert (run.usage.input_tokens, run.usage.output_tokens) == (20, 4)
    await client.runs.answer(run.id, "ann")
    run = await end(client, run.id)
    assert run.status == "succeeded", run.error
    assert (run.usage.input_tokens, run.usage.output_tokens) == (30, 6)


async def test_policy_and_approval_stand_before_a_call_in_a_node(client, agent):
    await client.policy.set("rules: [{name: r, match: {tools: [risky]}, then: ask}]")
    await agent("leave", "risky")
    run = await client.runs.create("g", "hi")
    run = await end(client, run.id)
    assert run.status == "waiting_approval"
    assert graphs.effects().read_text() == ""
    (asked,) = [a async for a in client.approvals.list(status="pending")]
    await client.approvals.approve(asked.id, asked.digest)
    run = await end(client, run.id)
    assert (run.status, run.output) == ("succeeded", "dangerous")
    assert graphs.effects().read_text() == "dangerous\n"


async def test_a_tool_that_the_agent_does_not_declare(client, agent):
    await agent("leave")
    run = await client.runs.create("g", "hi")
    run = await end(client, run.id)
    assert run.status == "failed"
    assert graphs.effects().read_text() == ""


async def test_an_unknown_graph_and_a_wrong_agent(client, agent):
    await agent("nothing", retry={"max_attempts": 1})
    run = await client.runs.create("g", "hi")
    run = await end(client, run.id)
    assert run.error["code"] == "NOT_REGISTERED"
    with pytest.raises(ValueError, match="foreign"):
        AgentSpec(kind="langgraph")


async def test_what_a_framework_is_not_held_to_is_refused_and_not_ignored(client, agent):
    rails = {"output": [{"kind": "max_chars", "limit": 3}]}
    with pytest.raises(HarnessError, match="to guardrails, output_schema: say it in the framework"):
        await agent("questions", guardrails=rails, output_schema={"type": "object"})
    await agent("questions", "note")
    with pytest.raises(HarnessError, match="to an output_schema"):
        await client.runs.create("g", "hi", output_schema={"type": "object"})


async def test_a_run_takes_no_messages_that_its_graph_would_not_see(client, agent):
    await agent("questions", "note")
    run = await client.runs.create("g", "hi")
    await end(client, run.id)
    with pytest.raises(Exception, match="takes no messages"):
        await client.runs.steer(run.id, "psst")


async def test_a_worker_that_runs_none_imports_none():
    import subprocess
    import sys

    code = (
        "import sys, harness_worker.steps, harness_worker.runtime; "
        "bad = [m for m in sys.modules if m.split('.')[0] in {'langgraph', 'langchain_core', "
        "'agents'}]; sys.exit(str(bad) if bad else 0)"
    )
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=False)
    assert done.returncode == 0
