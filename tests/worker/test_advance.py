import asyncio
from types import SimpleNamespace
from uuid import uuid4

import pytest

from harness_common.core.message import user
from harness_worker import advance as adv
from harness_worker import runtime as rtmod
from harness_worker.advance import answer
from tests.store.play import say, sql
from tests.worker.runtime import make_runtime


async def test_context_lost_by_eviction(play, db, monkeypatch):
    """`have` is taken before the claim, the messages after it: an eviction between them cuts the context."""
    monkeypatch.setattr(rtmod, "_CACHED_RUNS", 1)
    rt = await make_runtime(db)
    run_id = await play.start("the question")
    rt.remember(run_id, (user("the question"),))
    seen = []

    async def step(ctx):
        seen.append(ctx.messages)
        return say("x")

    monkeypatch.setattr(adv, "STEPS", {"model": step})
    task = asyncio.create_task(answer(rt, play.tenant_id, run_id, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # waits for the claim
    rt.remember(uuid4(), (user("another run"),))  # another run commits
    await task
    assert len(seen[0]) == 1, f"the model was asked with {seen[0]}"


async def test_a_tool_that_lets_cancelled_error_out(play, db, monkeypatch):
    """No failure is counted: the run is rung and run again for ever."""
    rt = await make_runtime(db)
    run_id = await play.start()

    async def step(ctx):
        inner = asyncio.ensure_future(asyncio.sleep(10))
        inner.cancel()
        await inner

    monkeypatch.setattr(adv, "STEPS", {"model": step})
    out = []
    from harness_worker.heartbeat import beat

    for i in range(6):
        try:
            await answer(rt, play.tenant_id, run_id, 1)
        except BaseException as e:
            out.append(type(e).__name__)
        await sql(
            db, "UPDATE runs SET claimed_at = claimed_at - interval '1 hour' WHERE id=:r", r=run_id
        )
        await beat(rt)
    r = await play.read(run_id)
    assert r.state.failures or r.state.status != "running", (
        f"{out}: status {r.state.status}, failures {r.state.failures}, claimed {r.state.claimed}, attempt {r.attempt}, events {[e['type'] for e in await play.events(run_id)]}"
    )


async def test_reads_of_a_failed_group_end_with_it(monkeypatch):
    from harness_common.store.db import DatabaseUnavailable
    from harness_worker.steps import tools

    log = []

    class R:
        def __init__(self, scope):
            pass

        def is_write(self, c):
            return False

        async def run(self, c):
            if c.index == 0:
                raise DatabaseUnavailable("artifact")
            try:
                await asyncio.sleep(0.5)
                log.append("effect of an idempotent call, after the step was given up")
            except asyncio.CancelledError:
                log.append("cancelled")
                raise

    monkeypatch.setattr(tools, "ToolRunner", R)
    monkeypatch.setattr(tools, "ToolScope", lambda **k: None)
    monkeypatch.setattr(
        tools.PendingCall, "from_row", staticmethod(lambda r: SimpleNamespace(index=r))
    )
    rt = SimpleNamespace(
        db=0, blobs=0, tools=0, settings=0, clock=SimpleNamespace(now=0), threads=0, live=0
    )
    ctx = SimpleNamespace(
        runtime=rt,
        run=0,
        spec=SimpleNamespace(tools=()),
        number=1,
        started_at=0,
        held=0,
        calls=(0, 1),
    )
    with pytest.raises(DatabaseUnavailable):
        await tools.run(ctx)
    await asyncio.sleep(0.7)
    assert log != ["effect of an idempotent call, after the step was given up"], log
