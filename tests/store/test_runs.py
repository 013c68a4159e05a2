"""Commits, cancels and what is read back of runs, against Postgres."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from uuid import uuid4

import pytest

from harness_common.commands import cancel_run
from harness_common.core.errors import LostOwnership, NotFound
from harness_common.core.inputs import OwnerLost, Released, StepDone
from harness_common.core.message import Message, Text, ToolResult, ToolUse
from harness_common.core.rules import advance
from harness_common.core.run import Status
from harness_common.core.step import ModelAnswered, StepCancelled
from harness_common.store.apply import apply, group_commit, settle
from harness_common.store.claim import load_history
from harness_common.store.reads import checkpoint_state
from harness_common.store.writes import NextClaim, StepRecord, Write
from tests.store.play import CONTENT, WHEN, Play, make_tenant, ran, say, sql

# ── committing ────────────────────────────────────────────────────────────────────────────────────


async def test_a_whole_run(play):
    """INV2, INV4, INV5 over a run of four steps."""
    run_id = await play.start("hé\x00llo")
    await play.step(run_id, say("a", tools=["look", "look"]))
    await play.step(run_id, ran("one", "two\x00"))
    await play.step(run_id, say("b", tools=["look"]))
    await play.step(run_id, ran("three"))
    done = await play.step(run_id, say("the end"))
    run = await play.read(run_id)
    assert run.state == done.run.state
    assert (run.state.status, run.state.output) == (Status.SUCCEEDED, "the end")
    assert (run.state.step, run.version, run.fence) == (5, 6, 5)
    assert run.claim_id is None
    await play.check_whole(run_id)
    calls = await play.calls(run_id)
    assert [(c["step"], c["idx"], c["status"], c["result"]) for c in calls] == [
        (2, 0, "succeeded", "one"),
        (2, 1, "succeeded", "two"),
        (4, 0, "succeeded", "three"),
    ]
    messages = await play.messages(run_id)
    assert [m.role for m in messages] == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert messages[0].text() == "hé\x00llo"
    assert await play.running() == 0


async def test_one_commit_per_step(play):
    """INV1, INV2: run, checkpoint, events, messages and ledger of a step are of one transaction."""
    run_id = await play.start()
    tables = {"checkpoints": "step", "messages": "step", "tool_calls": "step"}
    for n in range(1, 5):
        done = await play.step(run_id, say(tools=["look"]) if n % 2 else ran("x"))
        (row,) = await sql(play.db, "SELECT xmin::text AS x FROM runs WHERE id = :r", r=run_id)
        made = [row["x"]]
        for table, column in tables.items():
            step = n + 1 if table == "tool_calls" and n % 2 else n
            rows = await sql(
                play.db,
                f"SELECT xmin::text AS x FROM {table} WHERE run_id = :r AND {column} = :n",
                r=run_id,
                n=step,
            )
            made += [r["x"] for r in rows]
        events = await sql(
            play.db,
            "SELECT xmin::text AS x FROM events WHERE run_id = :r AND seq >= :s",
            r=run_id,
            s=done.first_seq,
        )
        made += [r["x"] for r in events]
        assert len(made) >= 6
        assert len(set(made)) == 1


async def test_the_commit_of_a_step_is_synchronous_even_after_an_asynchronous_claim(play):
    """INV1: the claim's `synchronous_commit = off` is local to its transaction."""
    run_id = await play.start()
    run = await play.claim(run_id)
    async with play.db.transaction() as conn:
        await conn.execute("SET LOCAL synchronous_commit = off")
        write = Write(run, advance(run.state, [Released("x")], WHEN), WHEN)
        assert (await apply(conn, [write], timeout_s=5))[0] is not None
        cursor = await conn.execute("SHOW synchronous_commit")
        assert await cursor.fetchone() == {"synchronous_commit": "on"}


async def _changed_fence(play, run):
    return replace(run, fence=run.fence - 1)


async def _changed_claim(play, run):
    return replace(run, claim_id=uuid4())


async def _no_claim(play, run):
    return replace(run, claim_id=None)


async def _changed_version(play, run):
    return replace(run, state=replace(run.state, version=run.version - 1))


async def _new_input(play, run):
    await sql(play.db, "UPDATE runs SET last_input_n = last_input_n + 1 WHERE id = :r", r=run.id)
    return run


async def _new_cancel(play, run):
    await cancel_run(play.db, play.tenant_id, run.id, by="ann")
    return replace(run, last_input_n=1)


async def _other_tenant(play, run):
    return replace(run, tenant_id=uuid4())


@pytest.mark.parametrize(
    "change",
    [
        _changed_fence,
        _changed_claim,
        _no_claim,
        _changed_version,
        _new_input,
        _new_cancel,
        _other_tenant,
    ],
)
async def test_a_commit_over_anything_else_than_what_was_seen_writes_nothing(play, change):
    """INV6, INV20: each of the five comparisons of commit.sql on its own."""
    run_id = await play.start()
    run = await change(play, await play.claim(run_id))
    before, events = await play.read(run_id), await play.events(run_id)
    assert await play.apply(run, StepDone(say(tools=["look"]), WHEN), owner=True) is None
    assert await play.read(run_id) == before
    assert await play.events(run_id) == events
    assert await play.calls(run_id) == []
    assert await play.checkpoints(run_id) == []
    assert await play.running() == 1


async def test_a_stale_owner_never_commits(play):
    """INV6: reaped and claimed by another, then the first one comes back with its answer."""
    run_id = await play.start()
    stale = await play.claim(run_id, uuid4())
    await _reap(play, run_id)
    with pytest.raises(LostOwnership):
        await play.settle(stale, say("late"))
    fresh = await play.claim(run_id, uuid4())
    assert fresh.fence == stale.fence + 1
    with pytest.raises(LostOwnership):
        await play.settle(stale, say("late"))
    await play.settle(fresh, say("mine"))
    with pytest.raises(LostOwnership):
        await play.settle(stale, say("late"))
    assert (await play.read(run_id)).state.output == "mine"
    await play.check_whole(run_id)


async def _reap(play, run_id):
    assert await play.apply(await play.read(run_id), OwnerLost("w", "killed")) is not None


async def test_going_on_inline_claims_again_under_a_new_fence(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    keep = NextClaim(uuid4(), play.worker, 900)
    first = await play.settle(run, say(tools=["look"]), keep=keep)
    assert (first.run.claim_id, first.run.fence) == (keep.claim_id, run.fence + 1)
    assert not first.should_ring
    assert await play.read(run_id) == replace(first.run, committed_by=run.claim_id)
    assert await play.try_claim(run_id, first.run.version) is None
    last = await play.settle(first.run, ran("x"), keep=NextClaim(uuid4(), play.worker, 900))
    ended = await play.settle(last.run, say(), keep=NextClaim(uuid4(), play.worker, 900))
    assert ended.run.claim_id is None
    await play.check_whole(run_id)


async def test_a_batch_of_commits_writes_each_run_for_itself(play, db):
    """INV2, INV5, INV13: a stale one between two good ones, and slots of two tenants added up."""
    other = Play(db, await make_tenant(db))
    owners = [(play, await play.start()) for _ in range(4)] + [(other, await other.start())]
    held = [await owner.claim(run_id) for owner, run_id in owners]
    held[1] = replace(held[1], fence=held[1].fence + 1)
    writes = [
        Write(
            run, advance(run.state, [StepDone(say(), WHEN)], WHEN), WHEN, StepRecord(WHEN, uuid4())
        )
        for run in held
    ]
    async with db.connection() as conn:
        applied = await apply(conn, writes, timeout_s=5)
    assert [a is not None for a in applied] == [True, False, True, True, True]
    assert await play.running() == 1
    assert await other.running() == 0
    for owner, run_id in owners:
        await owner.check_whole(run_id)


async def test_what_one_run_says_fails_no_neighbour_in_its_batch(play):
    """INV15, INV18: a value that cannot be written is its own run's trouble."""
    held = [await play.claim(await play.start()) for _ in range(3)]
    answers = [say("a"), say("b", tools=["look"]), say("c")]
    bad = Message("assistant", (ToolUse("\ud800", "look", {}),))
    answers[1] = ModelAnswered(bad, "tool_calls", "m")
    commit = group_commit(play.db)
    record = StepRecord(WHEN, play.worker)
    settled = await asyncio.gather(
        *(
            settle(play.db, commit, run, [StepDone(a, WHEN)], now=WHEN, step=record, patience_s=1)
            for run, a in zip(held, answers, strict=True)
        ),
        return_exceptions=True,
    )
    assert not isinstance(settled[0], BaseException), settled[0]
    assert not isinstance(settled[2], BaseException), settled[2]


# ── cancelling ────────────────────────────────────────────────────────────────────────────────────


async def test_cancel_is_at_once_when_nobody_owns_the_run_and_safe_to_repeat(play):
    run_id = await play.start()
    done = await cancel_run(play.db, play.tenant_id, run_id, by="ann", reason="no")
    assert (done.status, done.claimed_by, done.changed) == (Status.CANCELLED, None, True)
    again = await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert (again.status, again.changed) == (Status.CANCELLED, False)
    assert await play.running() == 0
    assert [i["kind"] for i in await sql(play.db, "SELECT kind FROM inputs")] == ["cancel"]
    await play.check_whole(run_id)


async def test_cancel_of_an_owned_run_names_the_owner_and_keeps_its_claim(play):
    run_id = await play.start()
    run = await play.claim(run_id)
    done = await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert (done.status, done.claimed_by) == (Status.RUNNING, play.worker)
    again = await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert (again.claimed_by, again.changed) == (play.worker, False)
    held = await play.read(run_id)
    assert (held.claim_id, held.fence, held.version) == (run.claim_id, run.fence, run.version)
    applied = await play.settle(run, StepCancelled())
    assert applied.run.state.status is Status.CANCELLED
    await play.check_whole(run_id)


@pytest.mark.parametrize("tools", [[], ["look"]], ids=["final", "tools"])
async def test_a_cancel_never_costs_a_finished_step(play, tools):
    """INV20: the click comes after the model's answer and before its commit."""
    run_id = await play.start()
    run = await play.claim(run_id)
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    applied = await play.settle(run, say("worth four minutes", tools=tools))
    assert applied.run.state.status is Status.CANCELLED
    assert applied.run.state.step == 1
    assert (await play.messages(run_id))[1].text() == "worth four minutes"
    assert len(await play.calls(run_id)) == len(tools)
    await play.check_whole(run_id)


async def test_cancel_racing_the_commit_has_one_winner_and_keeps_the_step(play):
    """INV4, INV20: whichever comes first, the step is there, and the run has ended once."""
    for _ in range(12):
        run_id = await play.start()
        run = await play.claim(run_id)
        applied, cancelled = await asyncio.gather(
            play.settle(run, say(tools=["look"])),
            cancel_run(play.db, play.tenant_id, run_id, by="ann"),
        )
        assert applied.transition.state.step == 1
        assert cancelled.changed
        end = await play.read(run_id)
        assert (end.state.status, end.state.step) == (Status.CANCELLED, 1)
        types = [e["type"] for e in await play.events(run_id)]
        assert types.count("run.cancelled") == 1
        assert types.count("run.cancel_requested") == 1
        await play.check_whole(run_id)
    assert await play.running() == 0


# ── what a model may say ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "argument",
    [10**30, 1.5e300, "\x00", "\u2028", {"deep": [[[]]]}, "\\u0000", "a\ud800b"],
    ids=["long integer", "float", "nul", "line", "deep", "escaped nul", "surrogate"],
)
async def test_whatever_a_model_asks_for_can_be_committed(play, argument):
    run_id = await play.start()
    message = Message("assistant", (Text("x"), ToolUse("c", "look", {"v": argument})))
    await play.step(run_id, ModelAnswered(message, "tool_calls", "m"))
    run = await play.read(run_id)
    assert run.state.step == 1
    claimed = await play.try_claim(run_id, run.version, have=1)
    assert claimed is not None
    if not isinstance(argument, str):
        assert claimed.messages == (message,)
        (row,) = await sql(play.db, "SELECT arguments::text AS a FROM tool_calls")
        assert json.loads(row["a"]) == {"v": argument}


async def test_arguments_that_were_no_object_are_kept_as_text(play):
    run_id = await play.start()
    message = Message("assistant", (ToolUse("c", "look", {}, '{"a": '),))
    await play.step(run_id, ModelAnswered(message, "tool_calls", "m"))
    claimed = await play.try_claim(run_id, 2)
    assert claimed is not None
    (call,) = claimed.calls
    assert call["arguments"] == '{"a": '
    assert call["status"] == "proposed"


# ── reading back ──────────────────────────────────────────────────────────────────────────────────


async def test_snapshot_and_deltas_fold_to_the_state_of_every_step(play):
    """INV2; and step 45 costs what step 5 costs."""
    run_id = await play.start("x" * 1000)
    states = {0: (await play.read(run_id)).state}
    for n in range(1, 51):
        result = say(f"{n:04}", tools=["look"]) if n % 2 else ran(f"r{n:04}")
        states[n] = (await play.step(run_id, result)).run.state
    run = await play.read(run_id)
    checkpoints = await play.checkpoints(run_id)
    assert [c["step"] for c in checkpoints if c["snapshot"] is not None] == [
        7,
        14,
        21,
        28,
        35,
        42,
        49,
    ]
    async with play.db.connection() as conn:
        for n, state in states.items():
            read = await checkpoint_state(conn, run, n, 5)
            for name in CONTENT:
                assert getattr(read, name) == getattr(state, name), (n, name)
        with pytest.raises(NotFound):
            await checkpoint_state(conn, run, 51, 5)
    sizes = {c["step"]: len(repr(c["delta"])) for c in checkpoints}
    for early, late in ((5, 45), (6, 46)):
        assert sizes[late] <= sizes[early] * 1.1
    await play.check_whole(run_id)


async def test_a_missing_checkpoint_is_not_papered_over(play):
    run_id = await play.start()
    for n in range(1, 6):
        await play.step(run_id, say(tools=["look"]) if n % 2 else ran("x"))
    await sql(play.db, "DELETE FROM checkpoints WHERE step = 2")
    async with play.db.connection() as conn:
        with pytest.raises(NotFound):
            await checkpoint_state(conn, await play.read(run_id), 4, 5)


async def test_the_history_of_a_session_over_runs(play):
    first = await play.start("one")
    session_id = (await play.read(first)).session_id
    await play.step(first, say("answer one"))
    second = await play.start("two", session_id=session_id)
    await play.step(second, say(tools=["look"]))
    await cancel_run(play.db, play.tenant_id, second, by="ann")
    third = await play.start("three", session_id=session_id)
    history = [one.message for one in await load_history(play.db, await play.read(third))]
    assert [m.text() for m in history] == ["one", "answer one", "two", "done", ""]
    assert [m.role for m in history] == ["user", "assistant", "user", "assistant", "tool"]
    assert history[-1].content == (
        ToolResult("call_0", "The run ended before this call.", True, "CANCELLED"),
    )
    assert await load_history(play.db, await play.read(first)) == ()
