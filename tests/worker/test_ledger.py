"""INV3: a write that resumed after WaitUntil is run twice when its process dies."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

from harness_common.contracts.tool import EffectClass, Tool, ToolSpec, WaitUntil
from harness_common.core.inputs import Admit, OwnerLost, TimerDue
from harness_common.core.rules import advance
from harness_common.core.step import ToolsWaiting
from harness_common.settings import Settings
from harness_worker.steps.tools import _result
from harness_worker.tools.call import PendingCall, ToolScope
from harness_worker.tools.runner import ToolRunner
from harness_worker.tools.threads import ToolThreads
from tests.store.play import say, sql


class Crash(BaseException):
    pass


async def test_write_repeated_after_wait(play, db):
    effects = []

    async def pay(ctx):
        if ctx.resumed is None:
            return WaitUntil(datetime.now(UTC) + timedelta(seconds=0.3))
        effects.append(ctx.attempt)
        if len(effects) == 1:
            raise Crash  # the process dies right after the effect
        return "paid"

    tool = Tool(ToolSpec("pay", "d", {"type": "object", "properties": {}}, EffectClass.WRITE), pay)
    reg = SimpleNamespace(get=lambda n: tool)

    def scope(run):
        return ToolScope(
            db=db,
            blobs=None,
            registry=reg,
            settings=Settings(),
            clock=lambda: datetime.now(UTC),
            threads=ToolThreads(),
            run=run,
            allowed=("pay",),
            step=run.state.step + 1,
            started_at=datetime.now(UTC),
            held=SimpleNamespace(writing=0, cancel_requested=False, release_asked=False),
            live=SimpleNamespace(emit=lambda *a: 0),
        )

    run_id = await play.start()
    await play.step(run_id, say(tools=["pay"]))
    await sql(db, "UPDATE tool_calls SET arguments='{}' WHERE run_id=:r", r=run_id)

    async def calls(run):
        rows = await sql(db, "SELECT to_jsonb(c) AS c FROM tool_calls c WHERE run_id=:r", r=run_id)
        return PendingCall.from_row(rows[0]["c"])

    # first owner: the tool waits
    run = await play.claim(run_id)
    out = await ToolRunner(scope(run)).run(await calls(run))
    res = _result([out])
    assert isinstance(res, ToolsWaiting)
    await play.settle(run, res)
    await asyncio.sleep(0.5)
    from harness_common.store.apply import Write, apply

    r = await play.read(run_id)
    now = datetime.now(UTC)
    async with db.connection() as c:
        await apply(c, [Write(r, advance(r.state, [TimerDue(), Admit()], now), now)], timeout_s=5)
    # second owner: intent, effect, death
    run = await play.claim(run_id)
    try:
        await ToolRunner(scope(run)).run(await calls(run))
    except Crash:
        pass
    row = await calls(run)
    print("after death:", row.status, row.resume_at, "dead intent?", row.is_dead_intent())
    r = await play.read(run_id)
    async with db.connection() as c:
        await apply(
            c, [Write(r, advance(r.state, [OwnerLost("w", "killed")], now), now)], timeout_s=5
        )
    # third owner must not repeat it
    run = await play.claim(run_id)
    out = await ToolRunner(scope(run)).run(await calls(run))
    print("third owner:", out.status, "effects:", effects)
    assert effects == [1] or len(effects) == 1, f"the write effect happened {len(effects)} times"
