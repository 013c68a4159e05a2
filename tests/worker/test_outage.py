"""Stores that are away or silent, and words that they cannot hold."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta

from harness_common.contracts.tool import EffectClass
from harness_common.coord.redis import connect
from harness_common.settings import RedisSettings
from harness_worker.scheduler.dispatch import DispatchLoop
from harness_worker.scheduler.reap import ReapLoop
from harness_worker.scheduler.service import look_once
from harness_worker.steps import tools
from tests.store.play import make_worker, say, sql
from tests.worker.runtime import (
    claim_tools_step,
    make_runtime,
    make_shared,
    make_tool,
    proxy_of,
    url_through,
)


async def test_a_postgres_outage_condemns_nobody(play, db):
    """INV20: no worker could beat, and a scheduler that is back first would void their answers."""
    runs = [await play.claim(await play.start(), await make_worker(db)) for _ in range(2)]
    await sql(db, "UPDATE workers SET seen_at = clock_timestamp() - interval '20 s'")
    shared = await make_shared(db)  # a fresh term, as after `DatabaseUnavailable`
    look = await look_once(shared)
    assert look.stale
    await ReapLoop(shared).run_once(look)
    for run in runs:  # their commits were patient all the while
        await play.settle(run, say("a four-minute answer"))
        assert (await play.read(run.id)).state.deaths == 0


async def test_a_leader_that_slept_through_an_outage_condemns_nobody(db):
    """INV7: frozen between its look and its judgement, it takes the outage's silence for death."""
    worker = await make_worker(db, silent_s=20.0)
    shared = await make_shared(db)
    look, loop = await look_once(shared), ReapLoop(shared)
    ago = [replace(look, now=look.now - timedelta(seconds=s)) for s in range(40, 9, -5)]
    for one in ago:
        loop.watch(one)
    assert await loop.run_once(ago[-1]) == 0
    (row,) = await sql(db, "SELECT died_at FROM workers WHERE incarnation = :w", w=worker)
    assert row["died_at"] is None


async def test_a_silent_redis_does_not_cost_the_leadership(db, valkey):
    """INV11: one tick that waits for Redis would outlast the leader's time."""
    async with proxy_of(valkey) as proxy:
        proxy.mode = "blackhole"
        redis = connect(url_through(proxy, valkey), RedisSettings())
        shared = await make_shared(db, redis=redis)
        look = await look_once(shared)
        began = time.monotonic()
        for loop in (ReapLoop(shared), DispatchLoop(shared)):
            await loop.run_once(look)
        took_s = time.monotonic() - began
        await redis.aclose()
        assert proxy.accepted, "nobody asked Redis"
    assert took_s < shared.settings.scheduler.leader_ttl_s


async def test_an_error_text_with_a_surrogate_can_be_committed(play, db):
    """INV15: a tool's error that no store can hold would end its run, or repeat it for ever."""

    async def read(ctx, i):
        raise ValueError("cannot read " + b"caf\xe9.txt".decode(errors="surrogateescape"))

    runtime = await make_runtime(db, tools=[make_tool("read", EffectClass.READ, read)])
    run_id = await play.start()
    await play.step(run_id, say(tools=["read"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    await play.settle(ctx.run, await tools.run(ctx))
    (call,) = await play.calls(run_id)
    assert call["status"] == "failed"
    assert call["error_type"] == "ValueError"
