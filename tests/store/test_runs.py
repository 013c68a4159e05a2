"""Start, claim, load, settle, cancel and retry against Postgres, also all at once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from uuid import uuid4

import pytest

from harness_common.commands import StartRun, cancel_run, retry_run, start_run
from harness_common.core.errors import Conflict, LostOwnership, NotFound
from harness_common.core.inputs import OwnerLost, Released, StepDone, StepFailed
from harness_common.core.message import Message, Text, ToolResult, ToolUse, user
from harness_common.core.rules import advance
from harness_common.core.run import Status
from harness_common.core.step import Failure, ModelAnswered, StepCancelled
from harness_common.core.tool_call import CallStatus
from harness_common.store.apply import apply, group_commit, settle
from harness_common.store.claim import Want, claim, load_history
from harness_common.store.reads import checkpoint_state
from harness_common.store.writes import NextClaim, StepRecord, Write
from tests.store.play import WHEN, Play, make_tenant, ran, say, sql


async def all_at_once(play, work, *, waiting=None):
    """Hold the tenant's row until so many of `work` wait for it, so that they really meet."""
    async with play.db.transaction() as conn:
        await conn.execute("SELECT FROM tenant_slots FOR UPDATE")
        tasks = [asyncio.ensure_future(w) for w in work]
        await until_blocked(conn, waiting or len(tasks))
    return await asyncio.gather(*tasks, return_exceptions=True)


async def until_blocked(conn, count):
    statement = (
        "SELECT count(*) AS n FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    while True:
        row = await (await conn.execute(statement)).fetchone()
        if row["n"] >= count:
            return
        await conn.execute("SELECT pg_stat_clear_snapshot()")


# ── starting ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_run_starts_at_once_when_there_is_room(play):
    started = await start_run(play.db, play.tenant_id, StartRun("a", "hi", tags={"k": "v"}))
    assert started.status is Status.RUNNING
    assert started.doorbell is not None
    assert started.doorbell.version == 1
    run = await play.read(started.run_id)
    assert (run.version, run.fence, run.claim_id, run.rings) == (1, 0, None, 1)
    assert [e["type"] for e in await play.events(run.id)] == ["run.created", "run.started"]
    assert await play.running() == 1
    (row,) = await sql(play.db, "SELECT wake_at > clock_timestamp() AS later FROM runs")
    assert row["later"], "a lost doorbell would not be found"


async def test_a_run_waits_when_somebody_waits_before_it_or_there_is_no_room(db):
    tenant_id = await make_tenant(db, granted=1)
    play = Play(db, tenant_id)
    first, second = await play.start(), await play.start()
    assert (await play.read(second)).state.status is Status.QUEUED
    await play.step(first, say())
    assert await play.running() == 0
    third = await play.start()
    assert (await play.read(third)).state.status is Status.QUEUED


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (StartRun("nobody", "x"), "AGENT_NOT_FOUND"),
        (StartRun("a", "x", agent_version=9), "AGENT_NOT_FOUND"),
        (StartRun("a", "x", session_id=uuid4()), "NOT_FOUND"),
    ],
)
async def test_what_cannot_start_leaves_nothing_behind(play, request_, code):
    with pytest.raises(NotFound) as caught:
        await start_run(play.db, play.tenant_id, replace(request_, idempotency_key="k"))
    assert caught.value.error_code == code
    for table in ("runs", "events", "messages", "sessions", "idempotency_keys"):
        assert await sql(play.db, f"SELECT 1 FROM {table}") == []


async def test_another_tenants_agent_and_run_are_not_there(play, db):
    other = Play(db, await make_tenant(db))
    run_id = await play.start()
    await sql(db, "DELETE FROM agents WHERE tenant_id = :t", t=other.tenant_id)
    with pytest.raises(NotFound):
        await other.start()
    with pytest.raises(NotFound):
        await cancel_run(db, other.tenant_id, run_id, by="x")
    with pytest.raises(NotFound):
        await retry_run(db, other.tenant_id, run_id, created_by="x")
    assert await other.try_claim(run_id, 1) is None


async def test_slots_are_never_exceeded_by_concurrent_starts(db):
    """INV13: twenty at once, room for seven."""
    play = Play(db, await make_tenant(db, max_running=50, granted=7))
    await all_at_once(play, [play.start() for _ in range(20)], waiting=8)
    assert await play.running() == 7
    rows = await sql(
        db, "SELECT status, wake_at IS NULL AS idle, count(*) AS n FROM runs GROUP BY 1, 2"
    )
    assert {(r["status"], r["idle"]): r["n"] for r in rows} == {
        ("running", False): 7,
        ("queued", True): 13,
    }


async def test_twins_with_one_idempotency_key_are_one_run(play):
    request = StartRun("a", "hi", idempotency_key="k", body_digest="d")
    twins = [start_run(play.db, play.tenant_id, request) for _ in range(10)]
    made = await all_at_once(play, twins, waiting=8)  # half of the connections
    assert len({m.run_id for m in made}) == 1
    assert sorted(m.replayed for m in made) == [False] + [True] * 9
    assert sum(m.doorbell is not None for m in made) == 1
    assert len({m.session_id for m in made}) == 1
    assert await sql(play.db, "SELECT count(*) AS n FROM runs") == [{"n": 1}]
    with pytest.raises(Conflict) as caught:
        await start_run(play.db, play.tenant_id, replace(request, body_digest="other"))
    assert caught.value.error_code == "IDEMPOTENCY_KEY_REUSED"


async def test_an_idempotency_key_past_its_time_is_taken_over(play):
    request = StartRun("a", "hi", idempotency_key="k", body_digest="d")
    first = await start_run(play.db, play.tenant_id, request)
    await sql(play.db, "UPDATE idempotency_keys SET created_at = created_at - interval '25 hours'")
    second = await start_run(play.db, play.tenant_id, replace(request, body_digest="e"))
    assert second.run_id != first.run_id
    assert not second.replayed


async def test_a_session_has_one_run_going(play):
    first = await play.start()
    session_id = (await play.read(first)).session_id
    with pytest.raises(Conflict) as caught:
        await play.start(session_id=session_id)
    assert caught.value.error_code == "SESSION_BUSY"
    await play.step(first, say())
    assert (await play.read(await play.start(session_id=session_id))).prev_run_id == first


async def test_concurrent_starts_in_one_session_give_one_run(play):
    """The tenant's lock orders them; the session must then be read as it is, not as it was before
    the wait.
    """
    first = await play.start()
    session_id = (await play.read(first)).session_id
    await play.step(first, say())
    made = await all_at_once(play, [play.start(session_id=session_id) for _ in range(8)])
    assert sum(isinstance(m, Conflict) for m in made) == 7, made


# ── claiming ─────────────────────────────────────────────────────────────────────────────────────


async def test_eight_concurrent_claims_have_one_winner(play):
    run_id = await play.start()
    won = [c for c in await asyncio.gather(*(play.try_claim(run_id, 1) for _ in range(8))) if c]
    assert len(won) == 1
    run = won[0].run
    assert (run.fence, run.attempt, run.state.claimed) == (1, 1, True)
    assert (await play.read(run_id)).claim_id == run.claim_id


@pytest.mark.parametrize("version", [0, 2, 99])
async def test_a_doorbell_of_another_version_is_harmless(play, version):
    run_id = await play.start()
    assert await play.try_claim(run_id, version) is None
    assert (await play.read(run_id)).fence == 0


async def test_every_claim_raises_the_fence(play):
    run_id = await play.start()
    fences = []
    for _ in range(4):
        run = await play.claim(run_id)
        fences.append(run.fence)
        await play.settle(run, Released("x"))
    assert fences == [1, 2, 3, 4]
    assert (await play.read(run_id)).version == 1


async def test_runs_are_claimed_together_with_what_their_steps_need(play):
    """One statement, each run for itself: a loser between two winners, messages after those known,
    the ledger.
    """
    first, second, third = [await play.start(f"run {n}") for n in range(3)]
    await play.step(first, say(tools=["look"]))
    await play.claim(second)
    wants = [
        Want(play.tenant_id, first, 2, uuid4(), have=1),
        Want(play.tenant_id, second, 1, uuid4()),
        Want(play.tenant_id, third, 1, uuid4()),
    ]
    a, lost, b = await claim(play.db, wants, worker=play.worker, hold_s=900)
    assert a is not None
    assert b is not None
    assert lost is None
    assert (a.run.id, a.run.claim_id, a.run.fence) == (first, wants[0].claim_id, 2)
    assert (b.run.id, b.run.claim_id, b.run.fence) == (third, wants[2].claim_id, 1)
    assert [m.role for m in a.messages] == ["assistant"]
    assert [c["name"] for c in a.calls] == ["look"]
    assert b.messages == (user("run 2"),)
    assert b.calls == ()


async def test_overlapping_batches_of_claims_give_each_run_one_owner(play):
    runs = [await play.start() for _ in range(6)]
    orders = [runs, runs[::-1], runs[3:] + runs[:3], runs]
    made = await asyncio.gather(
        *(
            claim(
                play.db,
                [Want(play.tenant_id, r, 1, uuid4()) for r in order],
                worker=uuid4(),
                hold_s=900,
            )
            for order in orders
        )
    )
    won = [c.run.id for batch in made for c in batch if c is not None]
    assert sorted(won) == sorted(runs)


async def test_what_has_ended_or_waits_cannot_be_claimed(play):
    run_id = await play.start()
    await play.step(run_id, StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
    assert (await play.read(run_id)).state.status is Status.DELAYED
    assert await play.try_claim(run_id, (await play.read(run_id)).version) is None
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    assert await play.try_claim(run_id, (await play.read(run_id)).version) is None
    assert await play.running() == 0


# ── committing ───────────────────────────────────────────────────────────────────────────────────


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


# ── cancelling ───────────────────────────────────────────────────────────────────────────────────


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


# ── what a model may say ─────────────────────────────────────────────────────────────────────────


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


CONTENT = (
    *("step", "next_kind", "turn", "messages"),
    *("input_tokens", "output_tokens", "cost_usd", "memo"),
)


# ── reading back ─────────────────────────────────────────────────────────────────────────────────


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


# ── retrying ─────────────────────────────────────────────────────────────────────────────────────


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


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────


def _key(run, idx=0):
    return {"tenant_id": run.tenant_id, "run_id": run.id, "step": run.state.step + 1, "idx": idx}


async def _intend(play, run, *, prior=None, status="proposed", **other):
    attempt_id = uuid4()
    params = {
        "version": run.version,
        "fence": run.fence,
        "claim_id": run.claim_id,
        "attempt_id": attempt_id,
        "prior_attempt_id": prior,
        "from_status": [status],
        "effect": "write",
        "tool_version": "1",
        "ran_arguments": None,
        "served_by": None,
        "fingerprint": "f",
        "payload": "{}",
        "policy": None,
        "approval_id": None,
        "approval_digest": None,
    }
    rows = await play.db.fetch("call_intent", _key(run) | params | other)
    return attempt_id if rows else None


async def _result(play, run, attempt_id, text="done"):
    params = {
        "attempt_id": attempt_id,
        "status": "succeeded",
        "result": text,
        "error_type": None,
        "trust": "trusted",
        "artifacts": [],
        "duration_ms": 1.0,
        "cost_usd": 0.0,
        "resume_at": None,
        "evidence": f'{{"late_result": "{text}"}}',
    }
    return (await play.db.fetch("call_result", _key(run) | params))[0]["won"]


async def _give_up(play, run, attempt_id):
    params = {"attempt_id": attempt_id, "status": "unknown", "why": "gone"}
    return bool(await play.db.fetch("call_give_up", _key(run) | params))


@pytest.fixture
async def owned(play):
    """A claimed run whose coming step has one proposed call."""
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    return await play.claim(run_id)


async def test_an_intent_is_taken_once(play, owned):
    """INV3: two with the same plan, one goes ahead."""
    async with play.db.transaction() as conn:
        await conn.execute("SELECT FROM runs FOR UPDATE")
        trying = [asyncio.ensure_future(_intend(play, owned)) for _ in range(4)]
        await until_blocked(conn, 4)
    made = await asyncio.gather(*trying)
    assert sum(a is not None for a in made) == 1
    types = [e["type"] for e in await play.events(owned.id)]
    assert types.count("tool.started") == 1
    await play.check_whole(owned.id)


async def test_no_intent_after_a_cancel(play, owned):
    """INV9, INV3."""
    await cancel_run(play.db, play.tenant_id, owned.id, by="ann")
    assert await _intend(play, owned) is None
    assert (await play.calls(owned.id))[0]["status"] == "proposed"


@pytest.mark.parametrize(
    "other",
    [{"fence": 1}, {"claim_id": uuid4()}, {"version": 1}],
    ids=["fence", "claim", "version"],
)
async def test_no_intent_of_a_stale_owner(play, owned, other):
    """INV6, INV3."""
    assert await _intend(play, owned, **other) is None
    assert await _intend(play, owned) is not None


async def test_cancel_racing_an_intent(play):
    """INV9: either the intent came first or it is refused; never an intent after the cancel's
    event.
    """
    for _ in range(8):
        run_id = await play.start()
        await play.step(run_id, say(tools=["look"]))
        run = await play.claim(run_id)
        attempt_id, _ = await asyncio.gather(
            _intend(play, run), cancel_run(play.db, play.tenant_id, run_id, by="ann")
        )
        types = [e["type"] for e in await play.events(run_id)]
        assert types[-1] == "run.cancel_requested"
        assert ("tool.started" in types) == (attempt_id is not None)
        await play.check_whole(run_id)


async def test_a_result_before_the_unknown_wins(play, owned):
    attempt_id = await _intend(play, owned)
    assert await _result(play, owned, attempt_id)
    assert not await _give_up(play, owned, attempt_id)
    (call,) = await play.calls(owned.id)
    assert (call["status"], call["result"], call["evidence"]) == ("succeeded", "done", None)
    assert not await _result(play, owned, attempt_id, "twice")


async def test_a_result_after_the_unknown_is_evidence(play, owned):
    """INV3: the late result never is a step, and is not lost either."""
    attempt_id = await _intend(play, owned)
    assert await _give_up(play, owned, attempt_id)
    assert not await _result(play, owned, attempt_id, "late")
    (call,) = await play.calls(owned.id)
    assert (call["status"], call["result"]) == ("unknown", None)
    assert call["evidence"]["late_result"] == "late"
    assert call["evidence"]["why"] == "gone", "why it was given up is evidence too"


async def test_a_result_that_races_the_unknown_is_won_or_evidence(play, owned):
    """INV3: the result waits for the row that is just being declared unknown, and must then leave
    its evidence.
    """
    attempt_id = await _intend(play, owned)
    async with play.db.transaction() as conn:
        await conn.execute(
            "UPDATE tool_calls SET status = 'unknown' WHERE run_id = %s", (owned.id,)
        )
        waiting = asyncio.create_task(_result(play, owned, attempt_id, "late"))
        await until_blocked(conn, 1)
    assert not await waiting
    (call,) = await play.calls(owned.id)
    assert call["status"] == "unknown"
    assert (call["evidence"] or {}).get("late_result") == "late"


async def test_an_attempt_that_is_not_mine_is_not_touched(play, owned):
    attempt_id = await _intend(play, owned)
    assert not await _result(play, owned, uuid4())
    assert not await _give_up(play, owned, uuid4())
    assert (await play.calls(owned.id))[0]["attempt_id"] == attempt_id


async def test_a_step_that_ends_does_not_overwrite_the_ledger_of_a_write(play, owned):
    """INV3: what the ledger recorded stays; the step's outcome only closes what had not begun."""
    attempt_id = await _intend(play, owned)
    await _result(play, owned, attempt_id, "the truth")
    await play.settle(owned, ran("something else", status=CallStatus.FAILED))
    assert (await play.calls(owned.id))[0]["result"] == "the truth"
