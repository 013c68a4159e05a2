"""Retrying runs against Postgres, also all at once."""

from __future__ import annotations

import asyncio

import pytest

from harness_common.commands import cancel_run, retry_run
from harness_common.core.errors import Conflict
from harness_common.core.inputs import StepFailed
from harness_common.core.message import user
from harness_common.core.run import Status
from harness_common.core.step import Failure
from harness_common.store.reads import checkpoint_state
from tests.store.play import CONTENT, WHEN, ran, say, sql


async def _failed_at_tools(play):
    run_id = await play.start("go")
    await play.step(run_id, say(tools=["look"]))
    await play.step(run_id, ran("first"))
    await play.step(run_id, say("again", tools=["look", "look"]))
    await play.step(run_id, StepFailed(Failure("permanent", "X", "x"), WHEN))
    return run_id


async def test_a_retry_goes_on_from_the_last_checkpoint_with_messages_and_ledger(play):
    source_id = await _failed_at_tools(play)
    await sql(
        play.db,
        "UPDATE tool_calls SET status = 'running', effect = 'write', attempt_id = uuid7() "
        "WHERE step = 4 AND idx = 1",
    )
    started = await retry_run(play.db, play.tenant_id, source_id, created_by="ann")
    source, run = await play.read(source_id), await play.read(started.run_id)
    assert source.state.status is Status.FAILED, "terminal is final"
    assert run.state.status is Status.RUNNING
    for name in CONTENT:
        assert getattr(run.state, name) == getattr(source.state, name), name
    assert (run.state.step, run.version, run.fence, run.state.failures) == (3, 1, 0, 0)
    assert (run.session_id, run.prev_run_id) == (source.session_id, source.prev_run_id)
    assert await play.messages(run.id) == await play.messages(source_id)
    calls = await play.calls(run.id)
    assert [(c["step"], c["idx"], c["status"], c["result"]) for c in calls] == [
        (2, 0, "succeeded", "first"),
        (4, 0, "proposed", None),
        (4, 1, "unknown", None),
    ]
    await play.step(run.id, ran("second", "third"))
    done = await play.step(run.id, say("end"))
    assert (done.run.state.status, done.run.state.step) == (Status.SUCCEEDED, 5)
    async with play.db.connection() as conn:
        read = await checkpoint_state(conn, await play.read(run.id), 4, 5)
    assert read.step == 4
    events = await play.events(run.id)
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))


async def test_a_retry_of_a_retry_that_made_no_step(play):
    source_id = await _failed_at_tools(play)
    for _ in range(2):
        started = await retry_run(play.db, play.tenant_id, source_id, created_by="ann")
        await cancel_run(play.db, play.tenant_id, started.run_id, by="ann")
        source_id = started.run_id
    run = await play.read(source_id)
    assert run.state.step == 3
    assert len(await play.calls(source_id)) == 3


async def test_a_retry_of_a_run_that_made_no_step_at_all(play):
    source_id = await play.start("go")
    await cancel_run(play.db, play.tenant_id, source_id, by="ann")
    started = await retry_run(play.db, play.tenant_id, source_id, created_by="ann")
    run = await play.read(started.run_id)
    assert (run.state.step, run.state.messages) == (0, 1)
    assert await play.messages(run.id) == [user("go")]


async def test_only_what_failed_or_was_cancelled_is_retried(play):
    run_id = await play.start()
    with pytest.raises(Conflict):
        await retry_run(play.db, play.tenant_id, run_id, created_by="ann")
    await play.step(run_id, say())
    with pytest.raises(Conflict):
        await retry_run(play.db, play.tenant_id, run_id, created_by="ann")


async def test_a_retry_in_a_session_that_is_busy_is_refused(play):
    """Else two runs of one session are going, and the newer one is lost from the conversation."""
    source_id = await play.start()
    session_id = (await play.read(source_id)).session_id
    await cancel_run(play.db, play.tenant_id, source_id, by="ann")
    newer = await play.start("newer", session_id=session_id)
    with pytest.raises(Conflict) as caught:
        await retry_run(play.db, play.tenant_id, source_id, created_by="ann")
    assert caught.value.error_code == "SESSION_BUSY"
    assert (await sql(play.db, "SELECT head_run_id FROM sessions"))[0]["head_run_id"] == newer


async def test_concurrent_retries_give_one_run(play):
    source_id = await _failed_at_tools(play)
    made = await asyncio.gather(
        *(retry_run(play.db, play.tenant_id, source_id, created_by="ann") for _ in range(4)),
        return_exceptions=True,
    )
    assert sum(isinstance(m, Conflict) for m in made) == 3, made
