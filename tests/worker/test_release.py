"""Stopping a worker while a run is on its way to its step."""

from __future__ import annotations

import asyncio

from harness_worker.advance import answer, release_all
from tests.worker.runtime import make_runtime


async def test_a_release_between_claim_and_step_starts_nothing(play, db):
    """INV8: nobody would interrupt the step; the run would hang on a process that is leaving."""
    log = []

    async def chat(request):
        log.append("started")
        await asyncio.sleep(1.5)
        log.append("ended")

    runtime = await make_runtime(db, chat=chat)
    run_id = await play.start()
    task = asyncio.create_task(answer(runtime, play.tenant_id, run_id, 1))
    await asyncio.sleep(0)
    runtime.stopping = True
    release_all(runtime)
    await task
    assert log == []
    assert not (await play.read(run_id)).state.claimed
