"""release_all while the run is being claimed/loaded: the step starts all the same and nobody interrupts it."""

import asyncio

from harness_worker import advance as adv
from harness_worker.advance import answer, release_all
from tests.store.play import say
from tests.worker.runtime import make_runtime


async def test_release_between_claim_and_step(play, db, monkeypatch):
    rt = await make_runtime(db)
    run_id = await play.start()
    log = []

    async def step(ctx):
        log.append("started")
        await asyncio.sleep(1.5)
        log.append("ended")
        return say("x")

    monkeypatch.setattr(adv, "STEPS", {"model": step})
    task = asyncio.create_task(answer(rt, play.tenant_id, run_id, 1))
    await asyncio.sleep(0)
    rt.stopping = True
    release_all(rt)
    await task
    assert log == [], f"after the release: {log}"
