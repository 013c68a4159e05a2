"""A session has one run at a time, in the order in which its messages came, whatever becomes of
those that have not begun.
"""

from __future__ import annotations

from uuid import UUID

import pytest

from harness_common.commands import (
    StartRun,
    cancel_run,
    pause_run,
    resume_run,
    retry_run,
    start_run,
)
from harness_common.commands.request import OnBusy, Started
from harness_common.core.errors import Conflict
from harness_common.core.ids import encode
from harness_common.core.inputs import StepFailed
from harness_common.core.run import Status
from harness_common.core.step import Failure
from harness_common.store.claim import load_history
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.looper import Loop, Shared
from harness_worker.scheduler.release import ReleaseLoop
from tests.conformance_store.board import Board, tick_all
from tests.store.play import WHEN, say

FAILS = StepFailed(Failure("permanent", "BROKEN", "it is broken"), WHEN)


async def again(play: Board, run_id: UUID, on_busy: OnBusy, text: str = "again") -> Started:
    session_id = (await play.read(run_id)).session_id
    request = StartRun("a", text, session_id=session_id, on_busy=on_busy)
    return await start_run(play.db, play.tenant_id, request)


async def admit(shared: Shared) -> None:
    """Let go what may, and admit it."""
    loops: list[Loop] = [ReleaseLoop(shared), AdmitLoop(shared)]
    await tick_all(shared, loops)


async def test_a_run_goes_on_waiting_when_the_one_before_it_is_cancelled(play):
    """Two runs of a session at once would answer past each other, and do what they do twice."""
    shared = await play.shared()
    first = await play.start()
    second = (await again(play, first, "enqueue")).run_id
    third = (await again(play, first, "enqueue")).run_id
    await cancel_run(play.db, play.tenant_id, second, by="ann")
    await admit(shared)
    assert await play.status(third) is Status.QUEUED, "the first one is still going"
    await play.step(first, say())
    await admit(shared)
    assert await play.status(third) is Status.RUNNING


async def test_a_rest_before_the_start_does_not_let_a_run_pass(play):
    shared = await play.shared()
    first = await play.start()
    second = (await again(play, first, "enqueue")).run_id
    third = (await again(play, first, "enqueue")).run_id
    await pause_run(play.db, play.tenant_id, third, by="ann")
    await cancel_run(play.db, play.tenant_id, second, by="ann")
    await resume_run(play.db, play.tenant_id, third, by="ann")
    await admit(shared)
    assert await play.status(third) is Status.QUEUED
    await play.step(first, say())
    await admit(shared)
    assert await play.status(third) is Status.RUNNING


async def test_a_session_is_busy_while_any_run_of_it_goes_on(play):
    first = await play.start()
    second = (await again(play, first, "enqueue")).run_id
    await cancel_run(play.db, play.tenant_id, second, by="ann")
    with pytest.raises(Conflict) as caught:
        await again(play, first, "reject")
    assert caught.value.error_code == "SESSION_BUSY"
    assert caught.value.detail["run_id"] == encode("run", first)
    assert (await again(play, first, "enqueue")).status is Status.QUEUED


async def test_an_interrupt_stops_all_that_is_going_and_begins_after_it(play):
    shared = await play.shared()
    first = await play.start()
    held = await play.claim(first)
    second = await again(play, first, "interrupt")
    third = await again(play, first, "interrupt")
    assert [one.run_id for one in second.interrupted] == [first]
    assert [one.run_id for one in third.interrupted] == [second.run_id, first]
    assert await play.status(second.run_id) is Status.CANCELLED
    await admit(shared)
    assert await play.status(third.run_id) is Status.QUEUED, "the first one has not stopped yet"
    await play.settle(held, say("half"))
    await admit(shared)
    assert await play.status(first) is Status.CANCELLED
    assert await play.status(third.run_id) is Status.RUNNING


async def test_a_message_steers_the_run_under_way_and_not_one_that_waits(play):
    first = await play.start()
    second = (await again(play, first, "enqueue", "next")).run_id
    steered = await again(play, first, "steer", "louder")
    assert (steered.run_id, steered.steered) == (first, True)
    assert [m.text() for m in await play.messages(second)] == ["next"]


async def test_a_message_steers_past_a_run_that_is_about_to_stop(play):
    first = await play.start()
    await play.claim(first)
    second = (await again(play, first, "interrupt", "next")).run_id
    steered = await again(play, first, "steer", "louder")
    assert (steered.run_id, steered.steered) == (second, True)
    assert [m.text() for m in await play.messages(second)] == ["next", "louder"]


async def test_a_retry_takes_nothing_out_of_the_conversation_that_went_on(play):
    """The next message is answered with all in mind that was said, in its order."""
    first = await play.start("one")
    await play.step(first, FAILS)
    second = (await again(play, first, "reject", "two")).run_id
    await play.step(second, say("to two"))
    third = (await retry_run(play.db, play.tenant_id, first, created_by="ann")).run_id
    await play.step(third, FAILS)
    fourth = (await retry_run(play.db, play.tenant_id, third, created_by="ann")).run_id
    await play.step(fourth, say("to one"))
    last = (await again(play, first, "reject", "three")).run_id
    past = await load_history(play.db, await play.read(last))
    assert [m.message.text() for m in past] == ["one", "two", "to two", "one", "to one"]


async def test_a_second_retry_takes_the_place_of_the_first(play):
    first = await play.start("one")
    await play.step(first, FAILS)
    for _ in range(2):
        made = (await retry_run(play.db, play.tenant_id, first, created_by="ann")).run_id
        await play.step(made, FAILS)
    again_of_it = (await retry_run(play.db, play.tenant_id, first, created_by="ann")).run_id
    assert await load_history(play.db, await play.read(again_of_it)) == ()


async def test_a_second_retry_comes_after_what_the_first_came_after(play):
    first = await play.start("one")
    await play.step(first, FAILS)
    second = (await again(play, first, "reject", "two")).run_id
    await play.step(second, say("to two"))
    for _ in range(2):
        made = (await retry_run(play.db, play.tenant_id, first, created_by="ann")).run_id
        past = await load_history(play.db, await play.read(made))
        assert [m.message.text() for m in past] == ["one", "two", "to two"]
        await play.step(made, FAILS)


async def test_a_second_retry_comes_after_a_first_that_went_well(play):
    first = await play.start("one")
    await play.step(first, FAILS)
    made = (await retry_run(play.db, play.tenant_id, first, created_by="ann")).run_id
    await play.step(made, say("to one"))
    other = (await retry_run(play.db, play.tenant_id, first, created_by="ann")).run_id
    past = await load_history(play.db, await play.read(other))
    assert [m.message.text() for m in past] == ["one", "to one"]


async def test_a_retry_in_a_busy_session_is_told_what_can_be_done(play):
    first = await play.start("one")
    await play.step(first, FAILS)
    await again(play, first, "reject")
    with pytest.raises(Conflict, match="or fork this run") as caught:
        await retry_run(play.db, play.tenant_id, first, created_by="ann")
    assert caught.value.error_code == "SESSION_BUSY"
    assert "on_busy" not in caught.value.message
