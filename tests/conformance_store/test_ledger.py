"""The ledger: intents before effects, one result, and what becomes of a dead owner's calls."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from harness_common.commands import cancel_run, fork_run, resolve_effect
from harness_common.commands.fork import ForkRun
from harness_common.core.errors import Conflict
from harness_common.core.inputs import OwnerLost
from harness_common.core.run import Status
from harness_common.core.step import ToolsDone, ToolsUnknown
from harness_common.store.audit import Actor
from harness_common.store.effects import CallKey, Resolution, list_unknown, read_call
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.reap import ReapLoop
from harness_worker.steps import tools as tools_step
from tests.conformance_store.board import tick_all
from tests.store.play import ran, say
from tests.worker.runtime import claim_tools_step, make_runtime
from tests.worker.tool_steps import Crash, a_tool

ANN = Actor("key_ann")


async def at_tools(play, *names):
    """Play a run to its tools step, owned; return the run."""
    run_id = await play.start()
    await play.step(run_id, say(tools=names or ["pay"]))
    return await play.claim(run_id)


async def intend(play, run, idx=0, **changed):
    """Write the intent of a call; return its attempt id, or None when it was refused."""
    attempt_id = changed.pop("attempt_id", None) or uuid4()
    rows = await play.statement(
        "call_intent",
        **{
            "run_id": run.id, "step": 2, "idx": idx, "version": run.version, "fence": run.fence,
            "claim_id": run.claim_id, "attempt_id": attempt_id, "prior_attempt_id": None,
            "from_status": ["proposed"], "effect": "write", "tool_version": "1", "policy": None,
            "fingerprint": "f", "ran_arguments": None, "served_by": None, "approval_id": None,
            "approval_digest": None, "payload": '{"call": "2.0", "tool": "pay"}',
        }
        | changed,
    )  # fmt: skip
    return attempt_id if rows else None


async def record(play, run, attempt_id, text="paid", status="succeeded"):
    (row,) = await play.statement(
        "call_result",
        run_id=run.id, step=2, idx=0, attempt_id=attempt_id, status=status, result=text,
        error_type=None, trust="trusted", artifacts=["art_1"], duration_ms=1.5, cost_usd=0.5,
        resume_at=None, evidence='{"late_result": "' + text + '"}',
    )  # fmt: skip
    return row["won"]


async def give_up(play, run, attempt_id):
    rows = await play.statement(
        "call_give_up", run_id=run.id, step=2, idx=0, attempt_id=attempt_id, status="unknown",
        why="nobody knows",
    )  # fmt: skip
    return bool(rows)


async def test_an_intent_is_the_owners_alone_and_is_written_once(play):
    run = await at_tools(play)
    for wrong in ({"fence": run.fence - 1}, {"claim_id": uuid4()}, {"version": run.version - 1}):
        assert await intend(play, run, **wrong) is None
    assert [c["status"] for c in await play.calls(run.id)] == ["proposed"]
    tried = await asyncio.gather(*(intend(play, run) for _ in range(5)))
    (won,) = [one for one in tried if one is not None]
    (call,) = await play.calls(run.id)
    assert (call["status"], call["attempt_id"], call["attempt"]) == ("running", won, 1)
    assert (await play.types(run.id)).count("tool.started") == 1
    assert (await play.events(run.id))[-1]["payload"]["worker"].startswith("w-")
    await play.check_whole(run.id)


async def test_no_intent_is_written_after_a_cancel(play):
    """INV9."""
    run = await at_tools(play)
    await cancel_run(play.db, play.tenant_id, run.id, by="ann")
    assert await intend(play, run) is None


async def test_the_first_of_result_and_unknown_wins(play):
    for first in ("result", "unknown"):
        run = await at_tools(play)
        attempt = await intend(play, run)
        if first == "result":
            assert await record(play, run, attempt)
            assert not await give_up(play, run, attempt)
        else:
            assert await give_up(play, run, attempt)
            assert not await record(play, run, attempt)
        (call,) = await play.calls(run.id)
        expected = {"result": "succeeded", "unknown": "unknown"}[first]
        assert call["status"] == expected
        if first == "unknown":
            assert call["evidence"]["late_result"] == "paid", "a late result is evidence"
            assert call["evidence"]["why"] == "nobody knows"


async def test_a_result_is_recorded_once_and_for_its_own_attempt(play):
    run = await at_tools(play)
    attempt = await intend(play, run)
    assert not await record(play, run, uuid4())
    won = await asyncio.gather(*(record(play, run, attempt, f"r{n}") for n in range(4)))
    assert sum(won) == 1
    (call,) = await play.calls(run.id)
    assert call["result"] == f"r{won.index(True)}"
    assert (call["artifacts"], call["cost_usd"], call["duration_ms"]) == (["art_1"], 0.5, 1.5)


async def test_what_the_ledger_has_is_not_written_over_by_the_steps_commit(play):
    run = await at_tools(play)
    attempt = await intend(play, run)
    await record(play, run, attempt, "from the ledger")
    await play.settle(run, ran("from the step"))
    (call,) = await play.calls(run.id)
    assert (call["status"], call["result"]) == ("succeeded", "from the ledger")


async def test_a_run_that_ends_over_an_effect_under_way_leaves_it_unknown(play):
    run = await at_tools(play, "pay", "look")
    assert await intend(play, run)
    await cancel_run(play.db, play.tenant_id, run.id, by="ann")
    await play.apply(await play.read(run.id), OwnerLost("w", "killed"))
    assert await play.status(run.id) is Status.CANCELLED
    calls = await play.calls(run.id)
    assert [c["status"] for c in calls] == ["unknown", "cancelled"]
    assert calls[0]["evidence"]["attempt_id"] == str(calls[0]["attempt_id"])
    (row,) = await list_unknown(play.db, play.tenant_id, limit=10)
    assert (row["run_id"], row["step"], row["idx"]) == (run.id, 2, 0)


# ── a dead owner's calls, by the class of their effect ───────────────────────────────────────────


async def died_over(play, effect):
    """Let a process die in a tool of this effect class; return the runtime of the next, the run
    and what the tool was called with.
    """
    seen: list[tuple[int, str]] = []

    async def act(ctx, i):
        seen.append((ctx.attempt, ctx.idempotency_key))
        if len(seen) == 1:
            raise Crash
        return "done"

    tool = a_tool("act", effect, act)
    await play.agent("a", tools=["act"])
    dying, living = [await make_runtime(play.db, tools=[tool]) for _ in range(2)]
    run_id = await play.start(created_by=await play.make_key())
    await play.step(run_id, say(tools=["act"]))
    ctx = await claim_tools_step(dying, play, run_id)
    with pytest.raises(Crash):
        await tools_step.run(ctx)
    params = {
        "worker": dying.worker, "why": "killed", "only_if_silent": False, "silent_s": 1.0,
        "looked_at": None, "term": None,
    }  # fmt: skip
    assert (await play.db.fetch("worker_died", params))[0]["died"] == 1
    shared = await play.shared()
    await tick_all(shared, [ReapLoop(shared)])
    run = await play.read(run_id)
    assert (run.state.status, run.claim_id) == (Status.RUNNING, None)
    assert "run.recovered" in await play.types(run_id)
    return living, run_id, seen


@pytest.mark.parametrize("effect", ["read", "idempotent"])
async def test_a_dead_owners_read_or_idempotent_call_is_made_again_with_its_key(play, effect):
    living, run_id, seen = await died_over(play, effect)
    ctx = await claim_tools_step(living, play, run_id)
    done = await tools_step.run(ctx)
    assert isinstance(done, ToolsDone)
    assert len(seen) == 2
    assert seen[0][1] == seen[1][1], "the same key"
    await play.settle(ctx.run, done)
    await play.check_whole(run_id)


async def test_a_dead_owners_write_is_never_repeated_by_itself(play):
    """INV3: a person says what became of it."""
    living, run_id, seen = await died_over(play, "write")
    ctx = await claim_tools_step(living, play, run_id)
    result = await tools_step.run(ctx)
    assert isinstance(result, ToolsUnknown)
    await play.settle(ctx.run, result)
    assert await play.status(run_id) is Status.WAITING_APPROVAL
    assert len(seen) == 1
    key = CallKey(run_id, 2, 0)
    row = await read_call(play.db, play.tenant_id, key)
    assert (row["status"], row["run_status"]) == ("unknown", "waiting_approval")
    said = [
        Resolution("run_again", "key_ann", "it did not happen"),
        Resolution("failed", "key_bob", "I think it failed"),
    ]
    told = await asyncio.gather(
        *(resolve_effect(play.db, play.tenant_id, key, one, actor=ANN) for one in said),
        return_exceptions=True,
    )
    assert sum(isinstance(one, Conflict) for one in told) == 1
    (call,) = await play.calls(run_id)
    assert call["resolution"]["by"] in {"key_ann", "key_bob"}


async def test_a_write_that_a_person_lets_run_again_runs_once_more(play):
    living, run_id, seen = await died_over(play, "write")
    ctx = await claim_tools_step(living, play, run_id)
    await play.settle(ctx.run, await tools_step.run(ctx))
    again = Resolution("run_again", "key_ann", "it did not happen")
    await resolve_effect(play.db, play.tenant_id, CallKey(run_id, 2, 0), again, actor=ANN)
    shared = await play.shared()
    await tick_all(shared, [AdmitLoop(shared)])
    ctx = await claim_tools_step(living, play, run_id)
    done = await tools_step.run(ctx)
    assert isinstance(done, ToolsDone)
    assert len(seen) == 2
    await play.settle(ctx.run, done)
    (call,) = await play.calls(run_id)
    assert (call["status"], call["authorised"], call["result"]) == ("succeeded", 2, "done")


async def test_a_fork_over_an_effect_under_way_does_not_run_it_again(play):
    run = await at_tools(play)
    await intend(play, run)
    made = await fork_run(play.db, play.tenant_id, run.id, ForkRun())
    assert [c["status"] for c in await play.calls(made.run_id)] == ["unknown"]


# ── calls of one step that are kept or proposed along the way ────────────────────────────────────


async def test_a_call_that_code_proposes_has_one_row(play):
    run = await at_tools(play)
    params = {
        "run_id": run.id, "step": 2, "version": run.version, "fence": run.fence,
        "claim_id": run.claim_id, "tool_use_id": "mine", "name": "look", "arguments": '{"x": 1}',
    }  # fmt: skip
    rows = [await play.statement("call_propose", **params) for _ in range(3)]
    assert [row[0]["call"]["idx"] for row in rows] == [1, 1, 1]
    assert await play.statement("call_propose", **params | {"fence": run.fence + 1}) == []
    assert len(await play.calls(run.id)) == 2
