"""The ledger over a wait: a write that is resumed is a write like any other."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from harness_common.contracts.tool import EffectClass, WaitUntil
from harness_common.core.errors import LostOwnership
from harness_common.core.inputs import Admit, OwnerLost, TimerDue
from harness_common.core.rules import advance
from harness_common.core.step import ToolsUnknown, ToolsWaiting
from harness_common.store.apply import apply
from harness_common.store.writes import Write
from harness_worker.steps import tools
from harness_worker.tools.call import PendingCall
from tests.store.play import say, sql
from tests.worker.runtime import claim_tools_step, make_runtime, make_tool


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
