"""Child runs: a call starts one, once; its parent waits without a worker and joins what it gave."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from harness_common.blobs.local import LocalBlobs
from harness_common.broker.publish import Doorbell
from harness_common.commands import cancel_run, retry_run
from harness_common.contracts.tool import EffectClass, StartChild
from harness_common.core.budget import Limits
from harness_common.core.inputs import StepFailed
from harness_common.core.message import Message, Text
from harness_common.core.run import Status
from harness_common.core.step import Failure, ModelAnswered, ToolsDone, ToolsWaiting
from harness_common.store.artifacts import read_artifact
from harness_worker.runtime import Runtime
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.cancel import CancelLoop
from harness_worker.scheduler.looper import Loop
from harness_worker.scheduler.service import tick
from harness_worker.scheduler.wake import WakeLoop
from harness_worker.steps import tools
from harness_worker.steps.context import StepContext
from harness_worker.tools.children import ChildFailed
from tests.store.play import WHEN, ran, say, sql
from tests.worker.runtime import claim_tools_step, make_runtime, make_shared, make_tool


def spawn(**more):
    """Make a tool that starts a child for every call."""

    async def fn(ctx, i):
        return StartChild("a", f"part {i}", **more)

    return make_tool("spawn_run", EffectClass.IDEMPOTENT, fn)


async def children_of(play, parent):
    rows = await sql(
        play.db,
        "SELECT id, input, depth, limits, status, parent_step, parent_idx FROM runs "
        "WHERE parent_run_id = :p ORDER BY parent_idx",
        p=parent,
    )
    return list(rows)


async def parent_at_spawn(play, runtime, calls=1, **more):
    """Start a run whose first answer asks for children; return its id and tools step."""
    run_id = await play.start(**more)
    await play.step(run_id, say(tools=["spawn_run"] * calls))
    return run_id, await claim_tools_step(runtime, play, run_id)


def rung(runtime: Runtime) -> list[Doorbell]:
    """List the doorbells that the worker rang, in the order of their runs."""
    bell: Any = runtime.bell
    return sorted(bell.rung, key=lambda b: b.run_id)


async def waits_of(ctx: StepContext) -> ToolsWaiting:
    """Run a tools step that has to wait."""
    result = await tools.run(ctx)
    assert isinstance(result, ToolsWaiting)
    return result


async def wait_for_children(play, ctx):
    result = await tools.run(ctx)
    assert isinstance(result, ToolsWaiting)
    return await play.settle(ctx.run, result)


async def tick_until(shared, done):
    """Let a leading scheduler tick until `done`; the bound is generous."""
    loops: list[Loop] = [CancelLoop(shared), WakeLoop(shared), AdmitLoop(shared)]
    for _ in range(100):
        await tick(shared, loops)
        if await done():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not happen")


async def test_children_work_side_by_side_and_their_results_come_in_the_order_asked(play, db):
    runtime, shared = await make_runtime(db, tools=[spawn()]), await make_shared(db)
    parent, ctx = await parent_at_spawn(play, runtime, calls=3)
    applied = await wait_for_children(play, ctx)
    assert applied.run.state.status is Status.WAITING_CHILDREN
    children = await children_of(play, parent)
    assert [(c["input"], c["depth"]) for c in children] == [(f"part {i}", 1) for i in range(3)]
    assert [b.run_id for b in rung(runtime)] == [c["id"] for c in children]
    for child in reversed(children):
        await play.step(child["id"], say(f"result of {child['input']}"))

    async def joined():
        return (await play.read(parent)).state.status is Status.RUNNING

    await tick_until(shared, joined)
    again = await claim_tools_step(runtime, play, parent)
    done = await tools.run(again)
    assert isinstance(done, ToolsDone)
    assert [o.content for o in done.outcomes] == [f"result of part {i}" for i in range(3)]
    applied = await play.settle(again.run, done)
    # The children's tokens are their parent's: 3 + 2 for its own answer and for each of theirs.
    assert applied.run.state.input_tokens + applied.run.state.output_tokens == 5 * 4
    assert applied.run.state.cost_usd == pytest.approx(0.25 * 4)
    await play.check_whole(parent)


async def test_a_crash_after_the_start_of_a_child_starts_no_second_one(play, db):
    """INV2: the step is run again by the next owner, and finds the child by its call."""
    runtime = await make_runtime(db, tools=[spawn()])
    parent, ctx = await parent_at_spawn(play, runtime)
    first, second = await waits_of(ctx), await waits_of(ctx)
    assert first.waits == second.waits
    assert len(await children_of(play, parent)) == 1


async def test_two_owners_at_once_start_one_child(play, db):
    runtime = await make_runtime(db, tools=[spawn()])
    parent, ctx = await parent_at_spawn(play, runtime)
    await asyncio.gather(*(tools.run(ctx) for _ in range(6)))
    assert len(await children_of(play, parent)) == 1


async def test_a_child_that_ended_before_its_parent_waited_is_noticed(play, db):
    """The signal of its end found nobody waiting: the parent looks for itself."""
    runtime, shared = await make_runtime(db, tools=[spawn()]), await make_shared(db)
    parent, ctx = await parent_at_spawn(play, runtime)
    result = await tools.run(ctx)
    (child,) = await children_of(play, parent)
    await play.step(child["id"], say("quick"))
    await play.settle(ctx.run, result)
    await sql(db, "UPDATE runs SET wake_at = clock_timestamp() WHERE id = :p", p=parent)

    async def joined():
        return (await play.read(parent)).state.status is Status.RUNNING

    await tick_until(shared, joined)


@pytest.mark.parametrize("on_failure", ["collect", "fail"])
async def test_a_failed_child_is_told_to_the_model_or_fails_its_parent(play, db, on_failure):
    runtime = await make_runtime(db, tools=[spawn(on_failure=on_failure)])
    parent, ctx = await parent_at_spawn(play, runtime)
    await tools.run(ctx)
    (child,) = await children_of(play, parent)
    failed = StepFailed(Failure("permanent", "BAD", "it is bad"), WHEN)
    await play.step(child["id"], failed)
    if on_failure == "fail":
        with pytest.raises(ChildFailed, match="it is bad"):
            await tools.run(ctx)
        return
    done = await tools.run(ctx)
    assert isinstance(done, ToolsDone)
    assert done.outcomes[0].error_type == "CHILD_FAILED"
    assert "it is bad" in done.outcomes[0].content


async def test_children_share_what_their_parent_has_left(play, db):
    runtime = await make_runtime(db, tools=[spawn()])
    parent, ctx = await parent_at_spawn(play, runtime, calls=2, max_tokens=105, max_cost_usd=2.25)
    await tools.run(ctx)
    limits = [Limits.from_json(c["limits"]) for c in await children_of(play, parent)]
    assert [(one.max_tokens, one.max_cost_usd) for one in limits] == [(50, 1.0), (50, 1.0)]


async def test_a_child_cannot_have_more_than_is_left(play, db):
    runtime = await make_runtime(db, tools=[spawn(max_tokens=10_000)])
    parent, ctx = await parent_at_spawn(play, runtime, calls=2, max_tokens=105)
    result = await waits_of(ctx)
    (child,) = await children_of(play, parent)
    assert Limits.from_json(child["limits"]).max_tokens == 100
    refused = [o for o in result.outcomes if o.wait is None]
    assert [o.error_type for o in refused] == ["BUDGET_USED_UP"]


async def test_runs_nest_only_so_deep(play, db):
    runtime = await make_runtime(db, tools=[spawn()])
    parent, _ = await parent_at_spawn(play, runtime)
    await sql(db, "UPDATE runs SET depth = 5, claim_id = NULL WHERE id = :p", p=parent)
    done = await tools.run(await claim_tools_step(runtime, play, parent))
    assert isinstance(done, ToolsDone)
    assert done.outcomes[0].error_type == "TOO_DEEP"
    assert await children_of(play, parent) == []


async def test_a_cancel_reaches_children_and_their_children(play, db):
    """INV9: level by level, whoever works on them."""
    runtime, shared = await make_runtime(db, tools=[spawn()]), await make_shared(db)
    parent, ctx = await parent_at_spawn(play, runtime)
    await wait_for_children(play, ctx)
    (child,) = await children_of(play, parent)
    await play.step(child["id"], say(tools=["spawn_run"]))
    await wait_for_children(play, await claim_tools_step(runtime, play, child["id"]))
    (grandchild,) = await children_of(play, child["id"])
    held = await play.claim(grandchild["id"])
    other = await play.start("not of the family")
    await cancel_run(db, play.tenant_id, parent, by="ann")

    async def reached():
        return (await play.read(grandchild["id"])).state.cancel_requested

    await tick_until(shared, reached)
    assert (await play.read(child["id"])).state.status is Status.CANCELLED
    await play.settle(held, ModelAnswered(Message("assistant", (Text("x"),)), "stop", "m"))
    assert (await play.read(grandchild["id"])).state.status is Status.CANCELLED
    assert (await play.read(other)).state.status is Status.RUNNING


@pytest.mark.parametrize(("reason", "cap"), [("token", "max_tokens"), ("cost", "max_cost_usd")])
async def test_a_child_that_uses_up_the_shared_budget_ends_its_parent(play, db, reason, cap):
    """Nobody goes on with a budget that is gone: the reason goes up, whatever the model wants."""
    runtime = await make_runtime(db, tools=[spawn()])
    caps: Any = {"max_tokens": {"max_tokens": 30}, "max_cost_usd": {"max_cost_usd": 1.0}}
    parent, ctx = await parent_at_spawn(play, runtime, calls=2, **caps[cap])
    await tools.run(ctx)
    first, second = await children_of(play, parent)
    await play.step(second["id"], say("cheap"))
    spender = say(tools=["look"])
    share = Limits.from_json(first["limits"])
    used: dict[str, Any] = {
        "max_tokens": {"output_tokens": share.max_tokens},
        "max_cost_usd": {"cost_usd": 0.5},
    }
    await play.step(first["id"], replace(spender, **used[cap]))
    assert (await play.read(first["id"])).state.stop_reason == f"{reason}_budget_exceeded"
    done = await tools.run(ctx)
    assert isinstance(done, ToolsDone)
    applied = await play.settle(ctx.run, done)
    state = applied.run.state
    assert (state.status, state.stop_reason) == (Status.FAILED, f"{reason}_budget_exceeded")
    assert "a child used up the budget" in state.error["message"]
    left = state.limits.max_tokens, state.limits.max_cost_usd
    assert any(left)
    await play.check_whole(parent)


async def test_a_share_that_the_model_chose_is_the_childs_own_affair(play, db):
    runtime = await make_runtime(db, tools=[spawn(max_tokens=5)])
    parent, ctx = await parent_at_spawn(play, runtime, max_tokens=1000)
    await tools.run(ctx)
    (child,) = await children_of(play, parent)
    await play.step(child["id"], replace(say(tools=["look"]), output_tokens=50))
    done = await tools.run(ctx)
    assert isinstance(done, ToolsDone)
    assert done.outcomes[0].error_type == "CHILD_FAILED"
    assert done.guidance.stop is None


async def retried_at_spawn(play, runtime, parent):
    """Retry a parent that ended while it waited; return the new run and its tools step."""
    made = (await retry_run(play.db, play.tenant_id, parent, created_by="ann")).run_id
    return made, await claim_tools_step(runtime, play, made)


async def test_a_retried_parent_does_not_do_again_what_its_child_has_done(play, db):
    """INV3: what the child did before it was stopped is on its own record."""
    runtime = await make_runtime(db, tools=[spawn()])
    parent, ctx = await parent_at_spawn(play, runtime, max_tokens=100)
    await wait_for_children(play, ctx)
    (child,) = await children_of(play, parent)
    await play.step(child["id"], say("pay", tools=["look"]))
    await play.step(child["id"], ran("paid"))
    for run_id in (parent, child["id"]):
        await cancel_run(db, play.tenant_id, run_id, by="ann")
    made, again = await retried_at_spawn(play, runtime, parent)
    first, second = await waits_of(again), await waits_of(again)
    assert first.waits == second.waits
    (new,) = await children_of(play, made)
    assert (new["input"], new["depth"]) == ("part 0", 1)
    state = (await play.read(new["id"])).state
    assert (state.step, state.turn, state.next_kind) == (2, 1, "model")
    assert [(c["status"], c["result"]) for c in await play.calls(new["id"])] == [
        ("succeeded", "paid")
    ]
    assert state.input_tokens == 0, "its parent pays for what it does from now on"
    assert state.limits.max_tokens == 100
    done = await play.step(new["id"], say("all done"))
    assert done.run.state.status is Status.SUCCEEDED


async def test_a_retried_parent_takes_what_its_child_has_given(play, db):
    runtime = await make_runtime(db, tools=[spawn()])
    parent, ctx = await parent_at_spawn(play, runtime, calls=2)
    await wait_for_children(play, ctx)
    first, second = await children_of(play, parent)
    await play.step(first["id"], say("result of the first"))
    for run_id in (parent, second["id"]):
        await cancel_run(db, play.tenant_id, run_id, by="ann")
    made, again = await retried_at_spawn(play, runtime, parent)
    await wait_for_children(play, again)
    (new,) = await children_of(play, made)
    assert new["input"] == "part 1"
    await play.step(new["id"], say("result of the second"))
    done = await tools.run(replace(again, run=(await play.read(made))))
    assert isinstance(done, ToolsDone)
    assert [o.content for o in done.outcomes] == ["result of the first", "result of the second"]


async def test_a_childs_long_output_is_kept_whole_and_says_that_it_is_cut(play, db, tmp_path):
    runtime = await make_runtime(db, tools=[spawn()])
    runtime.blobs = LocalBlobs(tmp_path)
    parent, ctx = await parent_at_spawn(play, runtime)
    await tools.run(ctx)
    (child,) = await children_of(play, parent)
    output = "0123456789" * 5_000
    await play.step(child["id"], ModelAnswered(Message("assistant", (Text(output),)), "stop", "m"))
    done = await tools.run(ctx)
    assert isinstance(done, ToolsDone)
    (outcome,) = done.outcomes
    assert f"the whole is artifact {outcome.artifacts[0]}" in outcome.content
    _, raw = await read_artifact(db, runtime.blobs, play.tenant_id, outcome.artifacts[0])
    assert raw.decode() == output
