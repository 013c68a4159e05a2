"""The one write: compared with what was seen, whole or not at all, and never lost to a click."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest

from harness_common.commands import cancel_run, steer_run
from harness_common.core.errors import LostOwnership, NotFound
from harness_common.core.inputs import OwnerLost, StepDone
from harness_common.core.rules import advance
from harness_common.core.run import Status
from harness_common.core.values import replace as replace_value
from harness_common.store.apply import apply
from harness_common.store.reads import checkpoint_state
from harness_common.store.run_reads import read_events
from harness_common.store.writes import NextClaim, StepRecord, Write
from tests.store.play import WHEN, ran, say


async def all_of(play, run_id):
    """Return everything that is stored of a run."""
    view = await play.view(run_id)
    return {
        "run": {k: v for k, v in view.items() if k != "updated_at"},
        "events": await play.events(run_id),
        "checkpoints": await play.checkpoints(run_id),
        "calls": await play.calls(run_id),
        "messages": await play.messages(run_id),
        "running": await play.running(),
    }


def stale(run, what):
    """Return a run as somebody saw it who is wrong about one thing."""
    state = run.state
    return {
        "version": replace(run, state=replace_value(state, version=state.version + 1)),
        "fence": replace(run, fence=run.fence - 1),
        "claim_id": replace(run, claim_id=uuid4()),
        "input": replace(run, last_input_n=run.last_input_n + 1),
        "cancel": replace(run, state=replace_value(state, cancel_requested=True)),
    }[what]


@pytest.mark.parametrize("what", ["version", "fence", "claim_id", "input", "cancel"])
async def test_a_commit_over_anything_else_than_what_is_there_writes_nothing(play, what):
    run_id = await play.start()
    run = await play.claim(run_id)
    before = await all_of(play, run_id)
    assert (
        await play.apply(stale(run, what), StepDone(say(tools=["look"]), WHEN), owner=True) is None
    )
    assert await all_of(play, run_id) == before
    await play.settle(run, say())
    assert await play.status(run_id) is Status.SUCCEEDED


async def test_a_commit_writes_the_step_once(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    one = StepDone(say(tools=["look"]), WHEN)
    tried = await asyncio.gather(*(play.apply(run, one, owner=True) for _ in range(5)))
    assert sum(t is not None for t in tried) == 1
    await play.check_whole(run_id)
    assert [c["step"] for c in await play.checkpoints(run_id)] == [1]
    assert len(await play.calls(run_id)) == 1


async def test_a_settle_that_was_made_before_is_found_again(play):
    """INV10: the reply was lost; the row tells that the commit arrived."""
    run_id = await play.start()
    run = await play.claim(run_id)
    await play.settle(run, say(tools=["look"]))
    again = await play.settle(run, say(tools=["look"]))
    assert again.run.state.step == 1
    await play.check_whole(run_id)


async def test_a_stale_owner_never_commits_a_step(play):
    run_id = await play.start()
    first = await play.claim(run_id)
    await play.apply(first, OwnerLost("w", "killed"))
    second = await play.claim(run_id)
    with pytest.raises(LostOwnership):
        await play.settle(first, say("from the dead"))
    await play.settle(second, say("from the living"))
    assert (await play.read(run_id)).state.output == "from the living"
    await play.check_whole(run_id)


async def test_a_commit_is_whole_or_not_at_all(play):
    """Two runs in one statement: what one of them breaks leaves nothing of the other."""
    ids = [await play.start(), await play.start()]
    runs = [await play.claim(run_id) for run_id in ids]
    good = _write(runs[0])
    broken = _write(runs[1])
    # A message with a number that exists: the last thing that the statement writes.
    state = replace_value(broken.run.state, messages=0)
    broken = replace(broken, run=replace(broken.run, state=state))
    before = [await all_of(play, run_id) for run_id in ids]
    with pytest.raises(psycopg.errors.UniqueViolation):
        async with play.db.connection() as conn:
            await apply(conn, [good, broken], timeout_s=5)
    assert [await all_of(play, run_id) for run_id in ids] == before
    async with play.db.connection() as conn:
        (applied,) = await apply(conn, [good], timeout_s=5)
    assert applied is not None


def _write(run):
    transition = advance(run.state, [StepDone(say(tools=["look"]), WHEN)], WHEN)
    return Write(run, transition, WHEN, StepRecord(WHEN, run.claimed_by))


async def test_a_transaction_that_fails_leaves_nothing(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    before = await all_of(play, run_id)

    async def fail():
        async with play.db.transaction() as conn:
            (applied,) = await apply(conn, [_write(run)], timeout_s=5)
            assert applied is not None
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await all_of(play, run_id) == before
    await play.settle(run, say())
    await play.check_whole(run_id)


async def test_an_outside_input_costs_no_finished_step(play):
    """INV20: a message and a cancel came while the model answered."""
    run_id = await play.start()
    run = await play.claim(run_id)
    await steer_run(play.db, play.tenant_id, run_id, text="be brief", by="ann")
    applied = await play.settle(run, say(tools=["look"]))
    assert applied.run.state.step == 1
    assert applied.run.version == 2
    run = await play.claim(run_id)
    asked = await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert asked.claimed_by == play.worker
    applied = await play.settle(run, ran("found"))
    assert applied.run.state.status is Status.CANCELLED
    assert applied.run.state.step == 2, "the finished step counts"
    await play.check_whole(run_id)


async def test_of_a_cancel_and_a_commit_that_meet_one_is_first(play):
    for _ in range(10):
        run_id = await play.start()
        run = await play.claim(run_id)
        applied, _ = await asyncio.gather(
            play.settle(run, say("done")),
            cancel_run(play.db, play.tenant_id, run_id, by="ann"),
        )
        ended = await play.read(run_id)
        assert ended.state.status is applied.run.state.status
        assert ended.state.status in {Status.SUCCEEDED, Status.CANCELLED}
        last = (await play.types(run_id))[-1]
        assert last == {"succeeded": "run.completed"}.get(ended.state.status, "run.cancelled")
        terminal = {"run.completed", "run.cancelled", "run.failed"}
        assert sum(t in terminal for t in await play.types(run_id)) == 1
        await play.check_whole(run_id)
    assert await play.running() == 0


async def test_a_step_that_goes_on_inline_has_a_claim_of_its_own(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    keep = NextClaim(uuid4(), play.worker, 900)
    applied = await play.settle(run, say(tools=["look"]), keep=keep)
    stored = await play.read(run_id)
    assert (stored.claim_id, stored.fence) == (keep.claim_id, run.fence + 1)
    assert (applied.run.claim_id, applied.run.fence) == (stored.claim_id, stored.fence)
    assert not applied.should_ring
    assert await play.try_claim(run_id, stored.version) is None
    with pytest.raises(LostOwnership):
        await play.settle(run, say("with the old claim"))
    assert (await play.settle(applied.run, ran("ok"))).run.state.step == 2


async def test_events_are_read_after_a_cursor_without_a_gap(play):
    run_id = await play.start()
    for n in range(6):
        await play.step(run_id, say(tools=["look"]) if n % 2 == 0 else ran(f"r{n}"))
    await play.step(run_id, say())
    seen, after = [], 0
    while True:
        page = await read_events(play.db, play.tenant_id, run_id, after=after, limit=3)
        seen += [e["seq"] for e in page.events]
        after = seen[-1]
        assert page.ended == (page.is_last and page.status is Status.SUCCEEDED)
        if page.is_last:
            break
    assert seen == list(range(1, len(seen) + 1))
    page = await read_events(play.db, play.tenant_id, run_id, after=after, limit=3)
    assert (page.events, page.ended) == ([], True)
    assert [e["type"] for e in await play.events(run_id)][-1] == "run.completed"
    with pytest.raises(NotFound):
        await read_events(play.db, play.tenant_id, uuid4(), after=0, limit=3)


async def test_a_progress_note_is_the_owners_alone(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    note = {
        "run_id": run_id, "type": "tool.progress", "step": 1, "payload": '{"at": 1}',
        "fence": run.fence, "claim_id": run.claim_id,
    }  # fmt: skip
    assert len(await play.statement("event_append", **note)) == 1
    for wrong in ({"fence": run.fence + 1}, {"claim_id": uuid4()}):
        assert await play.statement("event_append", **note | wrong) == []
    await play.settle(run, say())
    assert await play.statement("event_append", **note) == []
    await play.check_whole(run_id)


async def test_every_step_can_be_read_back_from_its_checkpoints(play):
    run_id = await play.start()
    states = {0: (await play.read(run_id)).state}
    for n in range(16):
        applied = await play.step(run_id, say(tools=["look"]) if n % 2 == 0 else ran(f"r{n}"))
        states[n + 1] = applied.run.state
    rows = await play.checkpoints(run_id)
    assert [c["step"] for c in rows if c["has_snapshot"]] == [7, 14]
    assert [c["kind"] for c in rows[:2]] == ["model", "tools"]
    run = await play.read(run_id)
    async with play.db.tenant_transaction(play.tenant_id) as conn:
        for step in (1, 6, 7, 8, 13, 14, 16):
            state = await checkpoint_state(conn, run, step, 5)
            assert (state.step, state.turn) == (step, states[step].turn)
            assert state.messages == states[step].messages
            assert state.memo == states[step].memo
        with pytest.raises(NotFound):
            await checkpoint_state(conn, run, 17, 5)


async def test_odd_texts_come_back_as_they_can_be_stored(play):
    run_id = await play.start("na\x00me \ud800 \U0001f600")
    await play.step(run_id, say('{"a": "\\u0000"}\x00', tools=["look"]))
    (first, second) = await play.messages(run_id)
    assert first.content[0].text == "na\x00me \ufffd \U0001f600"
    assert second.content[0].text == '{"a": "\\u0000"}\x00'
    assert "\x00" not in (await play.view(run_id))["input"], "a text column holds no NUL"
    await play.check_whole(run_id)


async def test_a_parent_is_woken_by_the_end_of_its_child_alone(play):
    """What one run's end does to others happens in its own commit."""
    first, second = await play.start(), await play.start()
    before = await all_of(play, second)
    await play.step(first, say())
    after = await all_of(play, second)
    assert (before.pop("running"), after.pop("running")) == (2, 1)
    assert after == before
