"""The ledger over a wait: a write that is resumed is a write like any other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.tool import EffectClass, ToolOutput, WaitUntil
from harness_common.core.errors import LostOwnership
from harness_common.core.inputs import Admit, OwnerLost, TimerDue
from harness_common.core.rules import advance
from harness_common.core.run import Status
from harness_common.core.step import CallOutcome, ToolsUnknown, ToolsWaiting
from harness_common.core.tool_call import CallStatus
from harness_common.store.apply import apply
from harness_common.store.audit import Actor
from harness_common.store.policies import TENANT, put_policy
from harness_common.store.postgres import pg
from harness_common.store.writes import Write
from harness_worker.heartbeat import request_cancel
from harness_worker.steps import foreign, tools
from harness_worker.tools.call import PendingCall
from harness_worker.tools.ledger import Ledger
from tests.store.play import say, sql
from tests.worker.runtime import claim_tools_step, make_runtime, make_tool
from tests.worker.tool_steps import a_tool, a_worker, asked, die, work


class Crash(BaseException):
    """The death of the process, which nothing in it can answer."""


async def test_a_resumed_write_is_not_repeated_after_a_death(play, db):
    """INV3: the intent of the second attempt would look like a wait, and the effect come twice."""
    effects = []

    async def pay(ctx, i):
        if ctx.resumed is None:
            return WaitUntil(datetime.now(UTC) + timedelta(seconds=0.3))
        effects.append(ctx.attempt)
        if len(effects) == 1:
            raise Crash
        return "paid"

    async def move(*inputs):
        run, now = await play.read(run_id), datetime.now(UTC)
        async with db.connection() as conn:
            write = Write(run, advance(run.state, list(inputs), now), now)
            (applied,) = await apply(conn, [write], timeout_s=5)
        assert applied is not None

    runtime = await make_runtime(db, tools=[make_tool("pay", EffectClass.WRITE, pay)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))

    # The first owner: the tool waits.
    ctx = await claim_tools_step(runtime, play, run_id)
    result = await tools.run(ctx)
    assert isinstance(result, ToolsWaiting)
    await play.settle(ctx.run, result)
    await asyncio.sleep(0.5)
    await move(TimerDue(), Admit())

    # The second: intent, effect, death.
    ctx = await claim_tools_step(runtime, play, run_id)
    with pytest.raises(Crash):
        await tools.run(ctx)
    assert len(effects) == 1
    await move(OwnerLost("w", "killed"))

    # The third must not repeat it.
    ctx = await claim_tools_step(runtime, play, run_id)
    assert PendingCall.from_row(ctx.calls[0]).is_dead_intent()
    assert isinstance(await tools.run(ctx), ToolsUnknown)
    assert len(effects) == 1


async def test_a_write_under_way_is_unknown_whatever_a_framework_asks_for_next(play, db):
    """INV3: done anew, its turn may ask for something else, and nobody would look at that row."""

    async def pay(ctx, i):
        raise Crash

    runtime = await make_runtime(db, tools=[make_tool("pay", EffectClass.WRITE, pay)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    with pytest.raises(Crash):
        await tools.run(await claim_tools_step(runtime, play, run_id))
    assert await play.apply(await play.read(run_id), OwnerLost("w", "killed")) is not None
    ctx = await claim_tools_step(runtime, play, run_id)
    spec = AgentSpec(kind="langgraph", foreign={"name": "asks_for_nothing"}, tools=("pay",))
    result = await foreign.run(replace(ctx, spec=spec))
    assert isinstance(result, ToolsUnknown)
    assert result.unknown == (0,)
    assert [c["status"] for c in await play.calls(run_id)] == ["unknown"]


async def test_a_stale_owner_does_not_judge_the_attempt_of_the_next(play, db):
    """INV6: a person said "run again" meanwhile, and the live owner's result would be lost."""

    async def pay(ctx, i):
        raise Crash

    runtime = await make_runtime(db, tools=[make_tool("pay", EffectClass.WRITE, pay)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    with pytest.raises(Crash):
        await tools.run(ctx)
    assert await play.apply(await play.read(run_id), OwnerLost("w", "killed")) is not None
    stale = await claim_tools_step(runtime, play, run_id)
    await sql(
        db, "UPDATE tool_calls SET attempt_id = uuid7(), attempt = 2 WHERE run_id = :r", r=run_id
    )
    with pytest.raises(LostOwnership, match="another attempt"):
        await tools.run(stale)
    (call,) = await play.calls(run_id)
    assert (call["status"], call["attempt"]) == ("running", 2)


async def test_a_result_whose_acknowledgement_got_lost_is_recorded_once(play, db):
    """INV10: it is written again, and finds itself; another's answer it does not replace."""
    runtime = await make_runtime(db, tools=[make_tool("pay", EffectClass.WRITE, dict)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    ledger, attempt_id = Ledger(await tools.scope_of(ctx)), uuid4()
    call = PendingCall.from_row(ctx.calls[0])
    await ledger.intend(call, runtime.catalog.local.get("pay"), attempt_id)
    outcome = CallOutcome(0, call.tool_use_id, "pay", CallStatus.SUCCEEDED, "paid")
    assert await ledger.record(attempt_id, outcome)
    assert await ledger.record(attempt_id, outcome)
    failed = CallOutcome(0, call.tool_use_id, "pay", CallStatus.FAILED, "no")
    assert not await ledger.record(attempt_id, failed)
    assert not await ledger.record(uuid4(), outcome)
    (row,) = await play.calls(run_id)
    assert (row["status"], row["result"]) == ("succeeded", "paid")


async def test_a_cancel_while_a_result_is_recorded_does_not_forget_it(play, db):
    """It is known that the effect happened: nobody needs to be asked."""
    blocked = """
        SELECT pid, query_start FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
          AND query ILIKE '%tool_calls%'
    """

    async def until_blocked(but=()):
        async with asyncio.timeout(20):
            while (  # noqa: ASYNC110 - Postgres has no signal for it
                (found := await sql(db, blocked)) == [] or found == list(but)
            ):
                await asyncio.sleep(0.01)
        return found

    locked, unlock = asyncio.Event(), asyncio.Event()

    async def lock():
        async with db.transaction() as conn:
            await pg(conn).execute(
                "SELECT 1 FROM tool_calls WHERE run_id = %s FOR UPDATE", [run_id]
            )
            locked.set()
            await unlock.wait()

    async def pay(ctx, **args):
        locking.append(asyncio.ensure_future(lock()))
        await locked.wait()
        return "paid"

    locking: list[asyncio.Future[None]] = []
    runtime = await a_worker(db, [a_tool("pay", "write", pay)])
    run_id = await asked(play, ("pay", {}))
    working = asyncio.ensure_future(work(runtime, play, run_id))
    first = await until_blocked()
    request_cancel(runtime, run_id)
    await until_blocked(first)
    unlock.set()
    await asyncio.gather(*locking)
    (row,) = await working
    assert (row["status"], row["result"]) == ("succeeded", "paid")


async def test_a_write_whose_step_ends_before_its_intent_is_written_has_not_happened(play, db):
    """Nothing was begun: the step's next attempt makes the call."""
    made, locked, unlock = [], asyncio.Event(), asyncio.Event()

    async def lock():
        async with db.transaction() as conn:
            await pg(conn).execute(
                "SELECT 1 FROM tool_calls WHERE run_id = %s FOR UPDATE", [run_id]
            )
            locked.set()
            await unlock.wait()

    async def pay(ctx, **args):
        made.append(args)
        return "paid"

    runtime = await a_worker(db, [a_tool("pay", "write", pay)])
    worker = runtime.settings.worker.model_copy(update={"step_timeout_s": 0.3})
    runtime.settings = runtime.settings.model_copy(update={"worker": worker})
    run_id = await asked(play, ("pay", {}))
    locking = asyncio.ensure_future(lock())
    await locked.wait()
    (row,) = await work(runtime, play, run_id)
    unlock.set()
    await locking
    assert (row["status"], row["attempt_id"], made) == ("proposed", None, [])
    assert (await play.read(run_id)).state.status is Status.DELAYED


async def test_what_a_recorded_write_has_cost_is_counted_once(play, db):
    """Its step was not committed by the process that made it; the next one counts it."""
    looks = []

    async def pay(ctx, **args):
        return ToolOutput("paid", cost_usd=0.5)

    async def look(ctx, **args):
        looks.append(args)
        if len(looks) == 1:
            raise Crash
        return "seen"

    runtime = await a_worker(db, [a_tool("pay", "write", pay), a_tool("look", "read", look)])
    run_id = await asked(play, ("pay", {}), ("look", {}))
    with pytest.raises(Crash):
        await work(runtime, play, run_id)
    assert (await play.read(run_id)).state.cost_usd == 0
    await die(play, run_id)
    await work(runtime, play, run_id)
    assert len(looks) == 2
    assert (await play.read(run_id)).state.cost_usd == 0.5


async def test_a_write_that_waits_and_may_not_go_on_is_unknown(play, db):
    """What it has done before it began to wait stands, whatever policy says now."""

    async def pay(ctx, **args):
        return WaitUntil(datetime.now(UTC) - timedelta(seconds=1))

    runtime = await a_worker(db, [a_tool("pay", "write", pay)])
    run_id = await asked(play, ("pay", {}))
    (row,) = await work(runtime, play, run_id)
    assert (row["status"], row["result"]) == ("running", "time")
    rule = "rules: [{name: no, match: {tools: [pay]}, then: deny}]"
    await put_policy(db, play.tenant_id, TENANT, rule, Actor("test"))
    await sql(
        db,
        "UPDATE runs SET status = 'running', waiting = NULL, version = version + 1 WHERE id = :r",
        r=run_id,
    )
    (row,) = await work(runtime, play, run_id)
    assert (row["status"], row["error_type"]) == ("unknown", "PERMISSION_DENIED"), row["result"]
    state = (await play.read(run_id)).state
    assert (state.status, state.waiting["calls"]) == (Status.WAITING_APPROVAL, ["2.0"])
