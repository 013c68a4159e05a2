"""The heartbeat goes on, whatever its answer holds."""

from __future__ import annotations

import asyncio

from harness_common.settings import Settings
from harness_worker.heartbeat import beat
from harness_worker.runtime import close_runtime, open_runtime
from tests.store.play import sql
from tests.worker.runtime import NOBODY, FakeBell, beating, make_runtime


async def test_an_unreadable_claim_does_not_end_the_heartbeat(play, db):
    """INV15: a field that a newer API wrote in `retry` would make all its worker's runs orphans."""
    runtime = await make_runtime(db)
    run_id = await play.start()
    assert await play.try_claim(run_id, 1, runtime.worker) is not None
    await sql(
        db,
        "UPDATE runs SET retry = retry || '{\"new_field\": 1}', "
        "claimed_at = claimed_at - interval '1 hour' WHERE id = :r",
        r=run_id,
    )
    async with beating(runtime) as task:
        await asyncio.sleep(1.0)
        assert not task.done(), repr(task.exception())


async def test_a_pruned_worker_comes_back(play, db):
    """INV8: cut off for an hour it lost its row; without a new one its claims are orphans."""
    runtime = await make_runtime(db)
    await sql(db, "DELETE FROM workers WHERE incarnation = :w", w=runtime.worker)  # as prune.sql
    await beat(runtime)
    await beat(runtime)
    assert await sql(db, "SELECT 1 FROM workers WHERE incarnation = :w", w=runtime.worker)
    run_id = await play.start()
    assert await play.try_claim(run_id, 1, runtime.worker) is not None
    look = await db.fetch_one("look", {"lease_s": 15.0})
    assert look is not None
    assert not look["orphaned"]


async def test_one_lost_heartbeat_leaves_time_for_the_next(db, database_url, tmp_path):
    """A reply that never came cost a statement's whole timeout: the worker was taken for dead."""
    settings = Settings(database_url=database_url, redis_url=NOBODY, data_dir=tmp_path)
    runtime = await open_runtime(settings, FakeBell(), "w")  # type: ignore[arg-type]
    silent_s = runtime.heart.timeout_s + 1.1 * settings.worker.renew_s
    await close_runtime(runtime)
    assert silent_s < settings.worker.lease_s
