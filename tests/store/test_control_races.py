"""Control, ends and forks against the real store, where they meet."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from harness_common.commands import (
    ForkRun,
    StartRun,
    cancel_run,
    fork_run,
    pause_run,
    resume_run,
    retry_run,
    start_run,
    steer_run,
)
from harness_common.core.errors import NotFound
from harness_common.core.inputs import StepFailed
from harness_common.core.run import Status
from harness_common.core.step import Failure, ToolsDone
from tests.store.play import ran, say, sql, waiting_until


def soon(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


# ── busy sessions ────────────────────────────────────────────────────────────────────────────────


async def test_a_repeated_interrupt_does_not_stop_the_run_that_it_made(play):
    first = await start_run(play.db, play.tenant_id, StartRun("a", "one"))
    request = StartRun(
        "a", "two", session_id=first.session_id, on_busy="interrupt",
        idempotency_key="k", body_digest="d",
    )  # fmt: skip
    made = await start_run(play.db, play.tenant_id, request)
    again = await start_run(play.db, play.tenant_id, request)
    assert (again.run_id, again.replayed) == (made.run_id, True)
    assert (await play.read(made.run_id)).state.status is not Status.CANCELLED


async def test_a_key_past_its_time_interrupts_as_a_new_one_does(play):
    first = await start_run(play.db, play.tenant_id, StartRun("a", "one"))
    request = StartRun(
        "a", "two", session_id=first.session_id, on_busy="interrupt",
        idempotency_key="k", body_digest="d", idempotency_ttl_s=60,
    )  # fmt: skip
    made = await start_run(play.db, play.tenant_id, request)
    await sql(play.db, "UPDATE idempotency_keys SET created_at = created_at - interval '1 hour'")
    again = await start_run(play.db, play.tenant_id, request)
    assert (again.replayed, [one.run_id for one in again.interrupted]) == (False, [made.run_id])
    assert (await play.read(made.run_id)).state.status is Status.CANCELLED


async def test_an_interrupt_that_cannot_start_a_run_stops_none(play):
    first = await start_run(play.db, play.tenant_id, StartRun("a", "one"))
    request = StartRun("no-such", "two", session_id=first.session_id, on_busy="interrupt")
    with pytest.raises(NotFound):
        await start_run(play.db, play.tenant_id, request)
    assert (await play.read(first.run_id)).state.status is Status.RUNNING


# ── calls left open ──────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_ends_with_an_answer_that_asks_for_calls_leaves_none_open(play):
    run_id = await play.start(max_turns=1)
    applied = await play.step(run_id, say(tools=["look"]))
    assert applied.run.state.stop_reason == "max_iterations_exceeded"
    assert [c["status"] for c in await play.calls(run_id)] == ["cancelled"]


async def test_a_cancel_during_a_step_that_then_waits_leaves_no_call_open(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    held = await play.claim(run_id)
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    applied = await play.settle(held, waiting_until(soon(60)))
    assert applied.run.state.status is Status.CANCELLED
    assert [c["status"] for c in await play.calls(run_id)] == ["cancelled"]


async def test_a_write_that_waits_on_is_unknown_when_a_cancel_ends_its_step(play):
    """It was begun before, and this time its step only looked that its time has not come."""
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    held = await play.claim(run_id)
    await sql(
        play.db,
        "UPDATE tool_calls SET status = 'running', effect = 'write', attempt_id = uuid7(), "
        "attempt = 1, resume_at = clock_timestamp() + interval '1 hour' WHERE run_id = :r",
        r=run_id,
    )
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    await play.settle(held, waiting_until(soon(3600)))
    assert [c["status"] for c in await play.calls(run_id)] == ["unknown"]


# ── steering ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_message_during_the_last_turn_does_not_make_a_failure_of_an_answer(play):
    """INV20: an outside input never costs a finished step."""
    run_id = await play.start(max_turns=1)
    held = await play.claim(run_id)
    await steer_run(play.db, play.tenant_id, run_id, text="and this?", by="ann")
    applied = await play.settle(held, say("the answer"))
    assert (applied.run.state.status, applied.run.state.output) == (Status.SUCCEEDED, "the answer")


@pytest.mark.parametrize("kind", ["model", "tools"])
async def test_a_retry_keeps_a_message_that_came_after_the_last_checkpoint(play, kind):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    if kind == "model":
        await play.step(run_id, ran("a"))
    await steer_run(play.db, play.tenant_id, run_id, text="in French", by="ann")
    await play.step(run_id, StepFailed(Failure("permanent", "BAD", "bad"), datetime.now(UTC)))
    made = (await retry_run(play.db, play.tenant_id, run_id, created_by="ann")).run_id
    if kind == "tools":
        await play.step(made, ran("a"))
    assert "in French" in [m.text() for m in await play.messages(made)]


async def test_a_message_does_not_put_off_the_next_ring_of_a_lost_doorbell(play):
    run_id = await play.start()
    before = "SELECT wake_at, rung_at FROM runs WHERE id = :r"
    (was,) = await sql(play.db, before, r=run_id)
    await asyncio.sleep(0.05)
    await steer_run(play.db, play.tenant_id, run_id, text="x", by="ann")
    (now,) = await sql(play.db, before, r=run_id)
    assert now == was, "nobody rang"


async def test_a_fork_counts_the_tokens_of_the_calls_that_it_reuses(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    (done,) = ran("a").outcomes
    await play.step(run_id, ToolsDone((replace(done, cost_usd=0.5, input_tokens=70),)))
    made = (await fork_run(play.db, play.tenant_id, run_id, ForkRun(step=1))).run_id
    (call,) = await play.calls(made)
    assert (call["cost_usd"], call["input_tokens"]) == (0.5, 70)


# ── order ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_that_was_paused_before_its_start_is_not_held_for_a_run_that_is_over(play):
    first = await start_run(play.db, play.tenant_id, StartRun("a", "one"))
    await play.step(first.run_id, say())
    await sql(play.db, "UPDATE tenant_slots SET max_running = 0")
    request = StartRun("a", "two", session_id=first.session_id)
    second = (await start_run(play.db, play.tenant_id, request)).run_id
    held = "SELECT status, held_for FROM runs WHERE id = :r"
    (before,) = await sql(play.db, held, r=second)
    await pause_run(play.db, play.tenant_id, second, by="ann")
    await resume_run(play.db, play.tenant_id, second, by="ann")
    (after,) = await sql(play.db, held, r=second)
    assert before == after == {"status": "queued", "held_for": None}
