"""Outside inputs against the real store: pause, resume, answers, steering, busy sessions, ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from harness_common.commands import (
    StartRun,
    answer_calls,
    answer_run,
    cancel_run,
    interrupt_run,
    pause_run,
    resume_run,
    start_run,
    steer_run,
)
from harness_common.contracts.flow import Interrupt
from harness_common.core.errors import Conflict, Invalid
from harness_common.core.ids import encode
from harness_common.core.inputs import Admit, StepDone
from harness_common.core.run import Status
from harness_common.core.step import CallOutcome, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus
from tests.store.play import ran, say, sql


def asks(*indexes: int) -> ToolsWaiting:
    """Build the end of a tools step whose calls ask a person."""
    return ToolsWaiting(
        tuple(
            CallOutcome(
                i, f"call_{i}", "look", CallStatus.RUNNING, "",
                wait=Wait(i, "input", None, {"question": f"q{i}?", "choices": []}),
            )
            for i in indexes
        )
    )  # fmt: skip


async def admit(play, run_id) -> None:
    run = await play.read(run_id)
    assert run.state.status is Status.QUEUED
    assert await play.apply(run, Admit()) is not None


# ── pause ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_paused_run_holds_nothing_and_goes_on_where_it_was(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    paused = await pause_run(play.db, play.tenant_id, run_id, by="ann")
    assert paused.status is Status.PAUSED
    assert await play.running() == 0
    run = await play.read(run_id)
    assert await play.try_claim(run_id, run.version) is None
    assert not (await pause_run(play.db, play.tenant_id, run_id, by="ann")).changed
    await resume_run(play.db, play.tenant_id, run_id, by="ann")
    await admit(play, run_id)
    await play.step(run_id, ran("a"))
    await play.step(run_id, say())
    assert (await play.read(run_id)).state.status is Status.SUCCEEDED
    await play.check_whole(run_id)


async def test_a_pause_during_a_step_costs_no_result(play):
    """INV20."""
    run_id = await play.start()
    held = await play.claim(run_id)
    asked = await pause_run(play.db, play.tenant_id, run_id, by="ann")
    assert (asked.status, asked.claimed_by) == (Status.RUNNING, held.claimed_by)
    applied = await play.settle(held, say(tools=["look"]))
    assert (applied.run.state.status, applied.run.state.step) == (Status.PAUSED, 1)
    assert not applied.should_ring
    assert await play.running() == 0
    assert [c["status"] for c in await play.calls(run_id)] == ["proposed"]


async def test_a_pause_taken_back_during_a_step_leaves_no_trace(play):
    run_id = await play.start()
    held = await play.claim(run_id)
    await pause_run(play.db, play.tenant_id, run_id, by="ann")
    await resume_run(play.db, play.tenant_id, run_id, by="ann")
    applied = await play.settle(held, say(tools=["look"]))
    assert applied.run.state.status is Status.RUNNING
    assert applied.should_ring


@pytest.mark.parametrize("act", [pause_run, resume_run])
async def test_a_run_that_is_over_cannot_be_paused(play, act):
    run_id = await play.start()
    await play.step(run_id, say())
    with pytest.raises(Conflict, match="is over") as caught:
        await act(play.db, play.tenant_id, run_id, by="ann")
    assert caught.value.error_code == "RUN_OVER"


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


async def test_the_third_question_in_a_row_is_answered_like_the_first(play):
    run_id = await play.start()
    for n in range(3):
        await play.step(run_id, say(tools=["look"]))
        waiting = await play.step(run_id, asks(0))
        assert waiting.run.state.status is Status.WAITING_INPUT
        assert await play.running() == 0
        await answer_run(play.db, play.tenant_id, run_id, text=f"answer {n}", call=None, by="ann")
        await admit(play, run_id)
        run = await play.read(run_id)
        claimed = await play.try_claim(run_id, run.version)
        (call,) = claimed.calls
        assert (call["status"], call["result"]) == ("succeeded", f"answer {n}")
        recorded = CallOutcome(
            0, "call_0", "look", CallStatus.SUCCEEDED, call["result"], recorded=True
        )
        await play.settle(claimed.run, replace(ran(), outcomes=(recorded,)))
    await play.step(run_id, say())
    assert (await play.read(run_id)).state.status is Status.SUCCEEDED
    await play.check_whole(run_id)


async def test_several_questions_are_answered_in_any_order_and_each_once(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look", "look", "look"]))
    await play.step(run_id, asks(0, 1, 2))

    async def give(call, text):
        await answer_run(play.db, play.tenant_id, run_id, text=text, call=call, by="ann")

    with pytest.raises(Invalid, match=r"call is one of 2\.0, 2\.1, 2\.2"):
        await give(None, "x")
    await give("2.1", "b")
    with pytest.raises(Invalid, match=r"call is one of 2\.0, 2\.2"):
        await give("2.1", "other")
    await give("2.2", "c")
    assert (await play.read(run_id)).state.status is Status.WAITING_INPUT
    await give("2.0", "a")
    assert (await play.read(run_id)).state.status is Status.QUEUED
    assert [c["result"] for c in await play.calls(run_id)] == ["a", "b", "c"]
    with pytest.raises(Conflict, match="asks nothing"):
        await give("2.0", "late")


async def test_two_answers_at_once_give_one_result(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    await play.step(run_id, asks(0))
    given = await asyncio.gather(
        *(
            answer_run(play.db, play.tenant_id, run_id, text=text, call="2.0", by=text)
            for text in ("a", "b")
        ),
        return_exceptions=True,
    )
    assert sorted(type(g).__name__ for g in given) == ["Asked", "Conflict"]
    (call,) = await play.calls(run_id)
    events = [e for e in await play.events(run_id) if e["type"] == "run.input_given"]
    assert [e["payload"]["by"] for e in events] == [call["result"]]


# ── steering ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_during_a_model_step_is_seen_by_the_next(play):
    """INV20: neither the answer under way nor the message is lost."""
    run_id = await play.start()
    held = await play.claim(run_id)
    await steer_run(play.db, play.tenant_id, run_id, text="in euros", by="ann")
    applied = await play.settle(held, say("a final answer"))
    assert applied.run.state.status is Status.RUNNING
    claimed = await play.try_claim(run_id, applied.run.version)
    assert [m.role for m in claimed.messages] == ["user", "assistant", "user"]
    assert claimed.messages[-1].text() == "in euros"
    await play.settle(claimed.run, say("in euros: 1"))
    await play.check_whole(run_id)


async def test_a_message_before_a_tools_step_waits_for_its_results(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    await steer_run(play.db, play.tenant_id, run_id, text="hurry", by="ann")
    assert len(await play.messages(run_id)) == 2
    await play.step(run_id, ran("x"))
    assert [m.role for m in await play.messages(run_id)] == ["user", "assistant", "tool", "user"]
    await play.check_whole(run_id)


@pytest.mark.parametrize("way", ["steer", "interrupt", "answer"])
async def test_no_message_is_taken_that_nobody_would_see(play, way):
    """A run of another framework does not read what is said to it: whoever says it is told."""
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    await play.step(run_id, asks(0))
    await sql(play.db, "UPDATE runs SET next_kind = 'langgraph' WHERE id = :r", r=run_id)
    name = encode("run", run_id)
    target = Interrupt(interrupt_type="steer", target_step_id=f"{name}.2", text="psst")
    asked = {
        "steer": lambda: steer_run(play.db, play.tenant_id, run_id, text="psst", by="ann"),
        "interrupt": lambda: interrupt_run(play.db, play.tenant_id, run_id, target, by="ann"),
        "answer": lambda: answer_calls(
            play.db, play.tenant_id, run_id, answers={"2.0": "yes"}, also="psst", by="ann"
        ),
    }[way]
    with pytest.raises(Conflict, match="takes no messages"):
        await asked()
    assert (await play.read(run_id)).state.status is Status.WAITING_INPUT


# ── busy sessions ────────────────────────────────────────────────────────────────────────────────


async def again(play, run_id, on_busy, **more):
    session_id = (await play.read(run_id)).session_id
    request = StartRun("a", "again", session_id=session_id, on_busy=on_busy, **more)
    return await start_run(play.db, play.tenant_id, request)


async def held_for(play, run_id):
    (row,) = await sql(play.db, "SELECT held_for FROM runs WHERE id = :r", r=run_id)
    return row["held_for"]


async def test_an_enqueued_run_is_held_behind_the_one_before_it(play):
    first = await play.start()
    second = await again(play, first, "enqueue")
    third = await again(play, first, "enqueue")
    for started in (second, third):
        assert (started.status, started.doorbell) == (Status.QUEUED, None)
        assert await held_for(play, started.run_id) == "session"
    assert (await play.read(second.run_id)).prev_run_id == first
    assert (await play.read(third.run_id)).prev_run_id == second.run_id


async def test_an_interrupted_run_is_asked_to_stop_and_the_new_one_waits_for_its_end(play):
    first = await play.start()
    held = await play.claim(first)
    started = await again(play, first, "interrupt")
    (one,) = started.interrupted
    assert (one.run_id, one.asked.claimed_by) == (first, held.claimed_by)
    assert await held_for(play, started.run_id) == "session"
    await play.settle(held, say("half"))
    assert (await play.read(first)).state.status is Status.CANCELLED


async def test_a_steered_session_gets_no_new_run(play):
    first = await play.start()
    steered = await again(play, first, "steer", idempotency_key="k", body_digest="d")
    assert (steered.run_id, steered.steered) == (first, True)
    twin = await again(play, first, "steer", idempotency_key="k", body_digest="d")
    assert (twin.run_id, twin.replayed) == (first, True)
    assert [m.text() for m in await play.messages(first)] == ["hi", "again"]


@pytest.mark.parametrize("on_busy", ["reject", "enqueue", "interrupt", "steer"])
async def test_an_idle_session_starts_a_run_whatever_was_to_happen_were_it_busy(play, on_busy):
    first = await play.start()
    await play.step(first, say())
    started = await again(play, first, on_busy)
    assert started.run_id != first
    assert started.status is Status.RUNNING


async def test_steering_races_with_the_end_of_the_run_and_loses_nothing(play):
    """The message is either said to the run or begins the next one; nobody waits for ever."""
    for _ in range(8):
        first = await play.start()
        held = await play.claim(first)
        applied, started = await asyncio.gather(
            play.settle(held, say("bye")), again(play, first, "steer")
        )
        if started.steered:
            assert applied.run.state.status is Status.RUNNING
            assert [m.role for m in await play.messages(first)] == ["user", "assistant", "user"]
        else:
            assert started.run_id != first


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_ends_leaves_no_call_open(play):
    """INV3: an effect in flight is unknown, for a person to say; the rest did not happen."""
    run_id = await play.start()
    await play.step(run_id, say(tools=["look", "look", "look"]))
    await sql(
        play.db,
        "UPDATE tool_calls SET status = 'running', effect = 'write', attempt_id = uuid7(), "
        "started_at = clock_timestamp() WHERE run_id = :r AND idx = 0",
        r=run_id,
    )
    await sql(
        play.db,
        "UPDATE tool_calls SET status = 'running', effect = 'idempotent' "
        "WHERE run_id = :r AND idx = 1",
        r=run_id,
    )
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    calls = await play.calls(run_id)
    assert [c["status"] for c in calls] == ["unknown", "cancelled", "cancelled"]
    assert "the run ended (cancelled)" in calls[0]["evidence"]["why"]


async def test_the_end_of_a_child_wakes_a_parent_that_waits(play):
    parent = await play.start()
    await play.step(parent, say(tools=["look"]))
    child = await play.start("part")
    await sql(
        play.db,
        "UPDATE runs SET parent_run_id = :p, parent_step = 2, parent_idx = 0 WHERE id = :c",
        p=parent,
        c=child,
    )
    wait = Wait(0, "child", None, {"run": "x", "agent": "a"})
    call = CallOutcome(0, "call_0", "look", CallStatus.RUNNING, "", wait=wait)
    waiting = await play.step(parent, ToolsWaiting((call,)))
    assert waiting.run.state.status is Status.WAITING_CHILDREN
    due = "SELECT id FROM runs WHERE wake_at <= clock_timestamp()"
    assert await sql(play.db, due) == []
    held = await play.claim(child)
    await play.settle(held, StepDone(say("the part"), held_now(held)))
    assert [row["id"] for row in await sql(play.db, due)] == [parent]


def held_now(run):
    """Any time will do as the start of a step."""
    return run.state.turn_at
