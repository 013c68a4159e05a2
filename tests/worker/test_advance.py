"""Answering a doorbell: what the step is given, and what an attempt that breaks leaves behind."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from harness_common.contracts.tool import EffectClass
from harness_common.core.message import user
from harness_common.store.connection import DatabaseUnavailable
from harness_worker.advance import answer
from harness_worker.steps import tools
from tests.store.play import say
from tests.worker.runtime import claim_tools_step, make_runtime, make_tool


async def test_an_eviction_during_the_claim_does_not_cut_the_context(play, db):
    """INV1: the model would be asked without the committed messages that the claim left out."""
    seen = []

    async def chat(request):
        seen.append(request.messages)

    runtime = await make_runtime(db, chat=chat)
    run_id = await play.start("the question")
    runtime.remember(run_id, (user("the question"),))
    task = asyncio.create_task(answer(runtime, play.tenant_id, run_id, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # now it waits for the claim
    runtime.remember(uuid4(), (user("x" * 20_000_000),))  # another run fills the cache
    assert runtime.known(run_id).messages == ()
    await task
    assert [len(messages) for messages in seen] == [1]


async def test_a_step_that_is_cancelled_from_within_has_failed(play, db):
    """INV15: no failure would be counted, and the run would be rung and run again for ever."""

    async def chat(request):
        inner = asyncio.ensure_future(asyncio.sleep(10))
        inner.cancel()
        await inner

    runtime = await make_runtime(db, chat=chat)
    run_id = await play.start()
    await answer(runtime, play.tenant_id, run_id, 1)
    run = await play.read(run_id)
    assert run.state.failures == 1
    assert not run.state.claimed


async def test_reads_of_a_failed_group_end_with_it(play, db):
    """INV6: a call would have its effect after its step was given up and the run was another's."""
    log = []
    started = asyncio.Event()

    async def cut_off(ctx, i):
        await started.wait()
        raise DatabaseUnavailable("artifact")

    async def slow(ctx, i):
        started.set()
        try:
            await asyncio.sleep(0.5)
            log.append("effect")
        except asyncio.CancelledError:
            log.append("cancelled")
            raise

    made = (
        make_tool("cut_off", EffectClass.READ, cut_off),
        make_tool("slow", EffectClass.IDEMPOTENT, slow),
    )
    runtime = await make_runtime(db, tools=made)
    run_id = await play.start()
    await play.step(run_id, say(tools=["cut_off", "slow"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    with pytest.raises(DatabaseUnavailable):
        await tools.run(ctx)
    await asyncio.sleep(0.7)
    assert log == ["cancelled"]
