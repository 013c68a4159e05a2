"""Runs that are handed from agent to agent, and agents as tools of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from harness_common.commands.fork import ForkRun, fork_run
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.memory import MemorySpec
from harness_common.contracts.model import ChatRequest
from harness_common.core import events as ev
from harness_common.core.inputs import Admit, ChildrenDone
from harness_common.core.run import Status
from harness_common.store import json_codec
from harness_common.store.audit import Actor
from harness_common.store.policies import put_policy
from harness_worker.advance import answer
from harness_worker.memory.run_memory import RunMemory
from harness_worker.runtime import Runtime
from tests.store.play import Play, make_key, sql
from tests.worker.runtime import make_runtime
from tests.worker.tool_steps import a_tool, asks, events, work


async def put(play: Play, name: str, version: int = 1, **spec: Any) -> None:
    """Add a version of an agent."""
    await sql(
        play.db,
        "INSERT INTO agents (tenant_id, name, version, spec, digest, created_by) "
        "VALUES (:t, :n, :v, cast(:s AS jsonb), '', '')",
        t=play.tenant_id,
        n=name,
        v=version,
        s=json_codec.dumps_text(AgentSpec(**spec).model_dump(mode="json")),
    )


async def team(play: Play, db: Any, **first: Any) -> tuple[Runtime, list[ChatRequest]]:
    """Make an agent `a` of version 2 that may hand over to `billing`, and back."""
    asked: list[ChatRequest] = []

    async def chat(request: ChatRequest) -> None:
        asked.append(request)

    async def look(ctx: Any, **args: Any) -> str:
        del ctx
        return f"looked {args}"

    tools_ = [a_tool("look", "read", look), a_tool("refund", "write", look)]
    runtime = await make_runtime(db, chat=chat, tools=tools_)
    await put(play, "a", 2, system="I am a.", tools=("look",), handoffs=("billing",), **first)
    await put(
        play, "billing", system="I am billing.", description="Knows invoices.",
        tools=("refund",), handoffs=("a",),
    )  # fmt: skip
    return runtime, asked


async def transfer(runtime: Runtime, play: Play, run_id: UUID, to: str) -> dict[str, Any]:
    """Let the model ask for a transfer and run it; return its ledger row."""
    return await transfer_row(
        runtime, play, run_id, f"transfer_to_{to}", reason="it is about money"
    )


async def transfer_row(
    runtime: Runtime, play: Play, run_id: UUID, name: str, **args: Any
) -> dict[str, Any]:
    """Let the model make this call; return its ledger row."""
    await play.step(run_id, asks((name, args)))
    return (await work(runtime, play, run_id))[-1]


async def test_a_run_goes_on_under_the_other_agents_pinned_version(play, db):
    runtime, asked = await team(play, db)
    run_id = await play.start("refund me")
    row = await transfer(runtime, play, run_id, "billing")
    assert row["status"] == "succeeded"
    await put(play, "billing", 2, system="I am a newer billing.")
    await work(runtime, play, run_id)
    (request,) = asked
    assert request.system == "I am billing."
    assert [t.name for t in request.tools] == ["refund", "transfer_to_a"]
    assert [m.role for m in request.messages] == ["user", "assistant", "tool"]
    (event,) = await events(play, run_id, ev.RUN_HANDED_OFF)
    assert event["payload"] == {"from": "a@2", "to": "billing@1", "hop": 1, "call": "2.0"}
    run = await play.read(run_id)
    assert (run.acting.name, run.acting.version) == ("billing", 1)
    assert (run.agent_name, run.agent_version) == ("a", 2), "the run is still that agent's"
    assert run.state.status is Status.SUCCEEDED


async def test_the_tools_of_the_other_agent_hold_from_the_next_step_on(play, db):
    runtime, _ = await team(play, db)
    run_id = await play.start("refund me", created_by=await make_key(db, play.tenant_id))
    await transfer(runtime, play, run_id, "billing")
    await play.step(run_id, asks(("refund", {"x": 1}), ("look", {"x": 2})))
    ledger = (await work(runtime, play, run_id))[-2:]
    assert [(c["name"], c["status"]) for c in ledger] == [
        ("refund", "succeeded"),
        ("look", "rejected"),
    ]
    assert ledger[1]["error_type"] == "TOOL_NOT_FOUND"


async def test_the_policy_of_the_other_agent_holds_from_the_next_step_on(play, db):
    runtime, _ = await team(play, db)
    rules = "rules: [{name: never, then: deny, match: {tools: refund}}]"
    await put_policy(db, play.tenant_id, "billing", rules, Actor("test"))
    run_id = await play.start("refund me", created_by=await make_key(db, play.tenant_id))
    await transfer(runtime, play, run_id, "billing")
    await play.step(run_id, asks(("refund", {"x": 1})))
    row = (await work(runtime, play, run_id))[-1]
    assert (row["status"], row["error_type"]) == ("rejected", "PERMISSION_DENIED")


async def test_a_fork_knows_who_acted_at_its_step(play, db):
    runtime, asked = await team(play, db)
    run_id = await play.start("refund me")
    await transfer(runtime, play, run_id, "billing")
    await work(runtime, play, run_id)
    for step, system in ((0, "I am a."), (2, "I am billing.")):
        started = await fork_run(db, play.tenant_id, run_id, ForkRun(step=step))
        await answer(runtime, play.tenant_id, started.run_id, 1)
        assert asked[-1].system == system, step


async def test_a_dry_run_is_handed_over_like_its_source(play, db):
    runtime, _ = await team(play, db)
    run_id = await play.start("refund me")
    await transfer(runtime, play, run_id, "billing")
    await work(runtime, play, run_id)
    dry = (await fork_run(db, play.tenant_id, run_id, ForkRun(dry_run=True))).run_id
    for _ in range(3):
        await answer(runtime, play.tenant_id, dry, (await play.read(dry)).version)
    run = await play.read(dry)
    assert run.state.status is Status.SUCCEEDED
    assert run.acting.name == "billing"


async def test_hand_offs_to_and_fro_are_capped_and_noticed(play, db):
    runtime, _ = await team(play, db, loop_guards={"max_handoffs": 3})
    await sql(
        db,
        "UPDATE agents SET spec = jsonb_set(spec, '{loop_guards,max_handoffs}', '3') "
        "WHERE name = 'billing'",
    )
    run_id = await play.start("refund me")
    for to in ("billing", "a", "billing"):
        assert (await transfer(runtime, play, run_id, to))["status"] == "succeeded"
    refused = await transfer(runtime, play, run_id, "a")
    assert (refused["status"], refused["error_type"]) == ("rejected", "HANDOFFS_USED_UP")
    assert (await play.read(run_id)).acting.name == "billing"
    assert len(await events(play, run_id, ev.RUN_HANDED_OFF)) == 3


async def test_of_two_transfers_in_one_answer_the_first_counts(play, db):
    runtime, _ = await team(play, db)
    await put(play, "other")
    await sql(
        db,
        """UPDATE agents SET spec = spec || '{"handoffs": ["billing", "other"]}'
        WHERE name = 'a'""",
    )
    run_id = await play.start("refund me")
    await play.step(run_id, asks(("transfer_to_other", {}), ("transfer_to_billing", {})))
    await work(runtime, play, run_id)
    assert (await play.read(run_id)).acting.name == "other"


async def test_an_agent_that_does_not_exist_is_an_answer_not_the_end(play, db):
    runtime, _ = await team(play, db)
    await sql(db, "DELETE FROM agents WHERE name = 'billing'")
    run_id = await play.start("refund me")
    row = await transfer(runtime, play, run_id, "billing")
    assert (row["status"], row["error_type"]) == ("rejected", "AGENT_NOT_FOUND")
    assert (await play.read(run_id)).state.status is Status.RUNNING


async def test_an_agent_as_a_tool_works_in_a_run_of_its_own(play, db):
    runtime, asked = await team(play, db)
    await sql(
        db,
        """UPDATE agents SET spec = spec || '{"tools": ["agent__billing"]}'
        WHERE name = 'a' AND version = 2""",
    )
    run_id = await play.start("refund me")
    await play.step(run_id, asks(("agent__billing", {"input": "what does invoice 7 say?"})))
    await work(runtime, play, run_id)
    assert (await play.read(run_id)).state.status is Status.WAITING_CHILDREN
    (child,) = await sql(
        db,
        "SELECT id, agent_name, agent_version, input FROM runs WHERE parent_run_id = :p",
        p=run_id,
    )
    assert (child["agent_name"], child["agent_version"]) == ("billing", 1)
    assert child["input"] == "what does invoice 7 say?"
    await work(runtime, play, child["id"])
    assert asked[0].system == "I am billing."
    await play.apply(await play.read(run_id), ChildrenDone())
    await play.apply(await play.read(run_id), Admit())
    row = (await work(runtime, play, run_id))[-1]
    assert (row["status"], row["result"]) == ("succeeded", "x")
    assert (await play.read(run_id)).state.next_kind == "model"


async def test_a_tool_of_the_worker_that_is_called_like_a_transfer_is_none(play, db):
    async def pay(ctx: Any, **args: Any) -> str:
        del ctx, args
        return "100 EUR moved"

    tool = a_tool("transfer_to_savings", "read", pay, version="2.1")
    runtime = await make_runtime(db, tools=[tool])
    await put(play, "a", 2, tools=("transfer_to_savings",))
    run_id = await play.start("save 100")
    row = await transfer_row(runtime, play, run_id, "transfer_to_savings")
    assert (row["status"], row["result"]) == ("succeeded", "100 EUR moved")
    assert (await play.read(run_id)).acting.name == "a"


async def test_the_memory_of_the_other_agent_is_its_own(play, db):
    runtime, _ = await team(play, db)
    run_id = await play.start("refund me")
    memory = RunMemory(db, None, runtime.settings.memory, await play.read(run_id), MemorySpec())
    assert (await memory.whose()).scope == "a"
    await transfer(runtime, play, run_id, "billing")
    after = replace(memory, run=await play.read(run_id))
    assert (await after.whose()).scope == "billing"
