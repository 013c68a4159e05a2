"""Each timeout ends what it should and nothing more: a tool, a step, the run's wall clock."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from datetime import timedelta

import pytest

from harness_common.contracts.tool import EffectClass
from harness_common.core.run import Status
from harness_worker.advance import answer
from harness_worker.tools.threads import ToolThreads
from tests.store.play import say, sql
from tests.worker.runtime import make_runtime, make_tool


async def for_ever(ctx, i):
    await asyncio.sleep(60)


def slow(name, effect, timeout_s=None):
    made = make_tool(name, effect, for_ever)
    return replace(made, spec=replace(made.spec, timeout_s=timeout_s))


def quick(name="quick"):
    async def fn(ctx, i):
        return "here"

    return make_tool(name, EffectClass.READ, fn)


async def tools_step(play, runtime, *names, **more):
    """Run one tools step of a run whose model asked for these tools."""
    await sql(
        play.db,
        "UPDATE agents SET spec = jsonb_set(spec, '{tools}', to_jsonb(cast(:n AS text[])))",
        n=list(runtime.catalog.local.names()),
    )
    run_id = await play.start(**more)
    await play.step(run_id, say(tools=names))
    await answer(runtime, play.tenant_id, run_id, 2)
    return run_id


@pytest.mark.parametrize(
    ("effect", "status"),
    [(EffectClass.READ, "failed"), (EffectClass.WRITE, "unknown")],
)
async def test_a_tool_that_takes_too_long_ends_alone(play, db, effect, status):
    """Its neighbour of the same answer keeps its result. INV3: a write is not tried again."""
    runtime = await make_runtime(db, tools=[quick(), slow("slow", effect, 0.1)])
    run_id = await tools_step(play, runtime, "quick", "slow")
    calls = await play.calls(run_id)
    assert [(c["name"], c["status"]) for c in calls] == [("quick", "succeeded"), ("slow", status)]
    run = await play.read(run_id)
    waits = status == "unknown"
    assert run.state.status is (Status.WAITING_APPROVAL if waits else Status.RUNNING)
    assert run.state.step == (1 if waits else 2)


async def test_a_write_that_found_no_thread_has_not_happened(play, db):
    """Nobody is asked what became of a call that was never made."""
    made, end = [], threading.Event()

    def pay(ctx, i):
        made.append(i)

    tool = make_tool("pay", EffectClass.WRITE, pay)
    tool = replace(tool, spec=replace(tool.spec, timeout_s=0.1))
    runtime = await make_runtime(db, tools=[tool])
    runtime.threads = ToolThreads(1)
    other = asyncio.ensure_future(runtime.threads.run(end.wait))
    run_id = await tools_step(play, runtime, "pay")
    end.set()
    await other
    (call,) = await play.calls(run_id)
    assert (call["status"], call["error_type"], made) == ("failed", "TOOL_THREADS_BUSY", [])


async def test_a_write_whose_step_ended_before_it_had_a_thread_has_not_happened(play, db):
    end = threading.Event()
    tool = make_tool("pay", EffectClass.WRITE, lambda ctx, i: i)
    runtime = await make_runtime(db, tools=[tool])
    runtime.threads = ToolThreads(1)
    worker = runtime.settings.worker.model_copy(update={"step_timeout_s": 0.2})
    runtime.settings = runtime.settings.model_copy(update={"worker": worker})
    other = asyncio.ensure_future(runtime.threads.run(end.wait))
    run_id = await tools_step(play, runtime, "pay")
    end.set()
    await other
    assert [c["status"] for c in await play.calls(run_id)] == ["cancelled"]
    again = "UPDATE runs SET status = 'running', not_before = NULL WHERE id = :r"
    await sql(db, again, r=run_id)
    await answer(runtime, play.tenant_id, run_id, (await play.read(run_id)).version)
    result = (await play.messages(run_id))[-1].content[0]
    assert (result.is_error, "Nothing was run" in result.content) == (True, True)


@pytest.mark.parametrize(
    ("effect", "status"),
    [(EffectClass.READ, "failed"), (EffectClass.WRITE, "unknown")],
)
async def test_a_tool_that_does_not_stop_is_left_alone_and_holds_up_nothing(
    play, db, effect, status
):
    """INV11: the step ends, and what such a tool gives in the end is not taken."""
    end = asyncio.Event()

    async def stubborn(ctx, i):
        while not end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await end.wait()
        return "late"

    tool = make_tool("stubborn", effect, stubborn)
    tool = replace(tool, spec=replace(tool.spec, timeout_s=0.1, max_attempts=1))
    runtime = await make_runtime(db, tools=[tool])
    runtime.threads = ToolThreads(stop_s=0.1)
    async with asyncio.timeout(20):
        run_id = await tools_step(play, runtime, "stubborn")
    (left,) = runtime.threads.outlived
    end.set()
    await asyncio.wait([left])
    await asyncio.sleep(0)
    (call,) = await play.calls(run_id)
    assert (call["status"], call["error_type"]) == (status, "TIMEOUT")
    assert "late" not in (call["result"] or "")
    assert not runtime.threads.outlived


async def test_what_a_tool_gives_after_its_time_is_not_taken(play, db):
    async def late(ctx, i):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "late"

    tool = make_tool("late", EffectClass.READ, late)
    tool = replace(tool, spec=replace(tool.spec, timeout_s=0.1, max_attempts=1))
    runtime = await make_runtime(db, tools=[tool])
    (call,) = await play.calls(await tools_step(play, runtime, "late"))
    assert (call["status"], call["error_type"]) == ("failed", "TIMEOUT")


@pytest.mark.parametrize("effect", [EffectClass.READ, EffectClass.WRITE])
async def test_a_step_that_takes_too_long_is_tried_again_or_left_to_a_person(play, db, effect):
    runtime = await make_runtime(db, tools=[slow("slow", effect)])
    worker = runtime.settings.worker.model_copy(update={"step_timeout_s": 0.2})
    runtime.settings = runtime.settings.model_copy(update={"worker": worker})
    run_id = await tools_step(play, runtime, "slow")
    state = (await play.read(run_id)).state
    assert (state.status, state.failures) == (Status.DELAYED, 1)
    (call,) = await play.calls(run_id)
    assert call["status"] == ("unknown" if effect is EffectClass.WRITE else "proposed")


async def test_the_end_of_a_run_s_time_leaves_an_effect_in_flight_unknown(play, db):
    """INV3: it may have happened; the run ends in time all the same, and says why."""
    runtime = await make_runtime(
        db, tools=[slow("look", EffectClass.READ), slow("pay", EffectClass.WRITE), quick("other")]
    )
    run_id = await tools_step(play, runtime, "pay", "other", timeout_s=2)
    state = (await play.read(run_id)).state
    assert (state.status, state.stop_reason) == (Status.FAILED, "deadline_exceeded")
    assert [c["status"] for c in await play.calls(run_id)] == ["unknown", "cancelled"]
    assert state.limits.deadline is not None
    (row,) = await sql(db, "SELECT finished_at FROM runs WHERE id = :r", r=run_id)
    assert row["finished_at"] - state.limits.deadline < timedelta(seconds=2)
    assert await play.running() == 0
