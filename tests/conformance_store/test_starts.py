"""How runs begin: idempotency keys, sessions, forks, children, and whose they are."""

from __future__ import annotations

import asyncio
from uuid import UUID

import psycopg
import pytest

from harness_common.commands import (
    ForkRun,
    Parent,
    StartRun,
    answer_run,
    cancel_run,
    fork_run,
    pause_run,
    retry_run,
    start_run,
    steer_run,
)
from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.core.graph import APPROVAL_CALL
from harness_common.core.inputs import StepFailed
from harness_common.core.run import Status
from harness_common.core.step import Failure
from harness_common.store import run_reads
from harness_common.store.approvals import list_approvals
from harness_common.store.claim import load_history
from harness_common.store.effects import CallKey, list_unknown, read_call
from harness_common.store.lineage import read_lineage
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.looper import Loop
from harness_worker.scheduler.release import ReleaseLoop
from tests.conformance_store.board import Board, make_tenant, tick_all
from tests.store.play import WHEN, ran, say

FAILS = StepFailed(Failure("permanent", "BROKEN", "it is broken"), WHEN)


# ── idempotency keys ─────────────────────────────────────────────────────────────────────────────


async def test_the_same_request_with_the_same_key_starts_one_run(play):
    request = StartRun("a", "hi", idempotency_key="k", body_digest="d")
    started = await asyncio.gather(*(start_run(play.db, play.tenant_id, request) for _ in range(8)))
    assert len({one.run_id for one in started}) == 1
    assert sum(not one.replayed for one in started) == 1
    assert await play.running() == 1
    assert (await start_run(play.db, play.tenant_id, request)).replayed


async def test_a_key_is_for_one_body_and_one_tenant(play, other):
    request = StartRun("a", "hi", idempotency_key="k", body_digest="d")
    first = await start_run(play.db, play.tenant_id, request)
    twin = StartRun("a", "ho", idempotency_key="k", body_digest="e")
    with pytest.raises(Conflict, match="another body"):
        await start_run(play.db, play.tenant_id, twin)
    assert await play.running() == 1
    theirs = await start_run(other.db, other.tenant_id, twin)
    assert not theirs.replayed
    assert theirs.run_id != first.run_id


async def test_a_start_that_is_refused_keeps_nothing(play):
    request = StartRun("nobody", "hi", idempotency_key="k", body_digest="d")
    with pytest.raises(NotFound):
        await start_run(play.db, play.tenant_id, request)
    started = await start_run(
        play.db, play.tenant_id, StartRun("a", "hi", idempotency_key="k", body_digest="other")
    )
    assert not started.replayed, "the key went with the refused start"


# ── agents and sessions ──────────────────────────────────────────────────────────────────────────


async def test_an_agent_gets_a_version_for_each_change(play):
    assert await play.agent("b", system="one") == 1
    assert await play.agent("b", system="one") == 1
    assert await play.agent("b", system="two") == 2
    run_id = (await start_run(play.db, play.tenant_id, StartRun("b", "hi"))).run_id
    assert (await play.read(run_id)).agent_version == 2
    old = await start_run(play.db, play.tenant_id, StartRun("b", "hi", agent_version=1))
    assert (await play.read(old.run_id)).agent_version == 1
    with pytest.raises(NotFound):
        await start_run(play.db, play.tenant_id, StartRun("b", "hi", agent_version=3))


async def test_a_session_has_one_run_at_a_time_and_remembers(play):
    first = await play.start("my name is Ann")
    session = (await play.read(first)).session_id
    with pytest.raises(Conflict, match="still going"):
        await play.start("and now?", session_id=session)
    second = await play.start("and now?", session_id=session, on_busy="enqueue")
    assert await play.status(second) is Status.QUEUED
    shared = await play.shared()
    loops: list[Loop] = [ReleaseLoop(shared), AdmitLoop(shared)]
    await tick_all(shared, loops)
    assert await play.status(second) is Status.QUEUED, "the first one is still going"
    await play.step(first, say("hello Ann"))
    await tick_all(shared, loops)
    run = await play.read(second)
    assert run.state.status is Status.RUNNING
    assert run.prev_run_id == first
    past = await load_history(play.db, run)
    assert [m.message.text() for m in past] == ["my name is Ann", "hello Ann"]


async def test_a_message_for_a_busy_session_steers_or_interrupts_its_run(play):
    first = await play.start()
    session = (await play.read(first)).session_id
    steered = await start_run(
        play.db, play.tenant_id, StartRun("a", "louder", session_id=session, on_busy="steer")
    )
    assert (steered.run_id, steered.steered) == (first, True)
    interrupted = await start_run(
        play.db, play.tenant_id, StartRun("a", "stop", session_id=session, on_busy="interrupt")
    )
    assert [one.run_id for one in interrupted.interrupted] == [first]
    assert await play.status(first) is Status.CANCELLED


# ── forks ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_fork_goes_on_from_a_checkpoint_with_its_messages_and_ledger(play):
    run_id = await play.start("hello")
    await play.step(run_id, say("looking", tools=["look"]))
    await play.step(run_id, ran("found"))
    await play.step(run_id, say("done"))
    made = await fork_run(play.db, play.tenant_id, run_id, ForkRun(step=2, input="and then?"))
    fork = await play.read(made.run_id)
    assert (fork.state.step, fork.state.next_kind, fork.state.turn) == (2, "model", 1)
    texts = [m.role for m in await play.messages(made.run_id)]
    assert texts == ["user", "assistant", "tool", "user"]
    (call,) = await play.calls(made.run_id)
    assert (call["status"], call["result"], call["attempt"]) == ("succeeded", "found", 0)
    assert fork.session_id != (await play.read(run_id)).session_id
    applied = await play.step(made.run_id, say("and then this"))
    assert applied.run.state.output == "and then this"
    assert (await play.read(run_id)).state.output == "done"
    await play.check_whole(made.run_id)
    lineage = await read_lineage(play.db, play.tenant_id, made.run_id)
    assert [(r["id"], r["relation"]) for r in lineage.above] == [(run_id, "forked_from")]
    with pytest.raises(Invalid):
        await fork_run(play.db, play.tenant_id, run_id, ForkRun(step=4))


async def test_a_fork_asks_for_itself_what_a_graph_asked_a_person(play):
    """Of a step that it does anew; what people said before its checkpoint stands."""
    run_id = await play.start("hello")
    for step in (1, 3):
        await play.step(run_id, say("asking", tools=[APPROVAL_CALL, "look"]))
        await play.step(run_id, ran("yes", "found"))
        assert (await play.read(run_id)).state.step == step + 1
    made = await fork_run(play.db, play.tenant_id, run_id, ForkRun(step=3))
    calls = [
        (c["step"], c["name"], c["status"], c["result"]) for c in await play.calls(made.run_id)
    ]
    assert calls == [
        (2, APPROVAL_CALL, "succeeded", "yes"),
        (2, "look", "succeeded", "found"),
        (4, APPROVAL_CALL, "proposed", None),
        (4, "look", "succeeded", "found"),
    ]


async def test_a_fork_of_a_fork_begins_where_its_source_began(play):
    run_id = await play.start("hello")
    await play.step(run_id, say("looking", tools=["look"]))
    await play.step(run_id, ran("found"))
    first = await fork_run(play.db, play.tenant_id, run_id, ForkRun(step=2))
    second = await fork_run(play.db, play.tenant_id, first.run_id, ForkRun(step=2))
    assert (await play.read(second.run_id)).state.step == 2
    with pytest.raises(Invalid, match="began after step 1"):
        await fork_run(play.db, play.tenant_id, first.run_id, ForkRun(step=1))


async def test_a_retry_goes_on_in_its_session_and_only_once_if_asked(play):
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    await play.step(run_id, FAILS)
    made = await retry_run(play.db, play.tenant_id, run_id, if_not_retried=True, created_by="ann")
    again = await play.read(made.run_id)
    assert again.session_id == (await play.read(run_id)).session_id
    assert again.state.step == 1
    assert [c["status"] for c in await play.calls(made.run_id)] == ["proposed"]
    with pytest.raises(Conflict):
        await retry_run(play.db, play.tenant_id, run_id, if_not_retried=True, created_by="ann")


async def test_a_dry_run_answers_from_what_was_recorded(play):
    run_id = await play.start()
    await play.step(run_id, say("looking", tools=["look"]))
    await play.step(run_id, ran("found"))
    await play.step(run_id, say("done"))
    made = await fork_run(play.db, play.tenant_id, run_id, ForkRun(dry_run=True))
    assert await play.calls(made.run_id) == []
    assert (await play.read(made.run_id)).overrides["recorded"] == run_id.hex
    (answer,) = await play.statement("recorded_answer", run_id=run_id, step=1)
    assert answer["more"] is True
    assert "looking" in answer["body"]
    assert answer["payload"]["input_tokens"] == 3
    (call,) = await play.statement("recorded_calls", run_id=run_id, step=2)
    assert (call["status"], call["result"], call["arguments"]) == ("succeeded", "found", {"i": 0})
    assert await play.statement("recorded_answer", run_id=run_id, step=2) == []


# ── children ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_call_has_one_child_and_a_second_start_leaves_nothing(play):
    parent = await play.start()
    await play.step(parent, say(tools=["spawn_run"]))
    request = StartRun("a", "part", parent=Parent(parent, 2, 0, 1), created_by="run")
    child = await start_run(play.db, play.tenant_id, request)
    running = await play.running()
    with pytest.raises(psycopg.errors.UniqueViolation):
        await start_run(play.db, play.tenant_id, request)
    assert await play.running() == running
    (row,) = await play.statement("child_read", run_id=parent, step=2, idx=0)
    assert (row["id"], row["status"]) == (child.run_id, "running")
    (used,) = await play.statement("children_budget", run_id=parent, step=2)
    assert used["started"] == 1
    lineage = await read_lineage(play.db, play.tenant_id, parent)
    assert [(r["id"], r["relation"]) for r in lineage.below] == [(child.run_id, "child")]


# ── tenants ──────────────────────────────────────────────────────────────────────────────────────


async def test_tenants_never_cross(play, other):
    run_id = await play.start("secret")
    await play.step(run_id, say(tools=["look"]))
    stranger = other.tenant_id
    with pytest.raises(NotFound):
        await run_reads.view_run(play.db, stranger, run_id)
    for read in (run_reads.read_messages, run_reads.read_checkpoints):
        with pytest.raises(NotFound):
            await read(play.db, stranger, run_id, after=0, limit=10)
    with pytest.raises(NotFound):
        await run_reads.read_tool_calls(play.db, stranger, run_id, limit=10)
    for ask in (cancel_run, pause_run):
        with pytest.raises(NotFound):
            await ask(play.db, stranger, run_id, by="eve")
    with pytest.raises(NotFound):
        await steer_run(play.db, stranger, run_id, text="x", by="eve")
    with pytest.raises(NotFound):
        await answer_run(play.db, stranger, run_id, text="x", call=None, by="eve")
    with pytest.raises(NotFound):
        await fork_run(play.db, stranger, run_id, ForkRun())
    with pytest.raises(NotFound):
        await read_call(play.db, stranger, CallKey(run_id, 2, 0))
    session = (await play.read(run_id)).session_id
    with pytest.raises(NotFound):
        await other.start(session_id=session)
    assert await other.try_claim(run_id, (await play.read(run_id)).version) is None
    assert await list_unknown(play.db, stranger, limit=10) == []
    assert await list_approvals(play.db, stranger, limit=10) == []
    assert await other.statement("runs_progress", run_ids=[run_id]) == []
    assert await other.statement("history", prev_run_id=run_id) == []
    assert await other.statement("checkpoints_to", run_id=run_id, step=1) == []
    assert await play.status(run_id) is Status.RUNNING


async def test_equal_names_of_two_tenants_are_two_things(play, other):
    await put_agent_of(play, "mine")
    await put_agent_of(other, "theirs")
    ids = [(await start_run(b.db, b.tenant_id, StartRun("b", "x"))).run_id for b in (play, other)]
    for board, run_id, text in zip((play, other), ids, ("mine", "theirs"), strict=True):
        run = await board.read(run_id)
        (row,) = await board.statement("agent_read", agent_id=run.agent_id)
        assert row["spec"]["system"] == text
    foreign = (await play.read(ids[0])).agent_id
    assert await other.statement("agent_read", agent_id=foreign) == []


async def put_agent_of(board, system):
    assert await board.agent("b", system=system) == 1


# ── slots ────────────────────────────────────────────────────────────────────────────────────────


async def test_a_tenant_never_runs_more_than_it_may(db):
    play = Board(db, await make_tenant(db, "narrow", slots=3))
    await play.register(play.worker)
    ids = await asyncio.gather(*(play.start(f"run {n}") for n in range(10)))
    shared, seen = await play.shared(), set[UUID]()
    while len(seen) < len(ids):
        running = [i for i in ids if await play.status(i) is Status.RUNNING]
        assert 0 < len(running) == await play.running() <= 3
        seen |= set(running)
        await asyncio.gather(*(play.step(run_id, say()) for run_id in running))
        await tick_all(shared, [AdmitLoop(shared)])
    assert await play.running() == 0


async def test_the_strictest_run_of_a_concurrency_key_says_how_many_go(play):
    many, alone, after = [
        await play.start(concurrency_key="k", concurrency_max=most) for most in (3, 1, 3)
    ]
    shared = await play.shared()
    for run_id in (many, alone, after):
        for _ in range(2):
            await tick_all(shared, [ReleaseLoop(shared), AdmitLoop(shared)])
        going = [i for i in (many, alone, after) if await play.status(i) is Status.RUNNING]
        assert going == [run_id]
        await play.step(run_id, say())


async def test_a_concurrency_key_lets_one_run_go_at_a_time(play):
    ids = [await play.start(concurrency_key="k") for _ in range(3)]
    shared = await play.shared()
    order = []
    for _ in range(3):
        await tick_all(shared, [ReleaseLoop(shared), AdmitLoop(shared)])
        (running,) = [i for i in ids if await play.status(i) is Status.RUNNING]
        order.append(running)
        await play.step(running, say())
    assert order == ids
