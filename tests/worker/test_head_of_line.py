"""One run, row or answer that is bad must not hold up or condemn the others."""

from __future__ import annotations

import asyncio

from harness_common.settings import DatabaseSettings
from harness_common.store.db import Database
from harness_common.store.postgres import pg
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.reap import ReapLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import Play, make_tenant, sql
from tests.worker.runtime import beating, make_runtime, make_shared


async def test_an_unreadable_queued_run_does_not_stop_the_admission_of_others(db):
    """INV15: a field that a newer API wrote would end the pass before the next tenant's turn."""
    bad, good = await make_tenant(db, granted=0), await make_tenant(db, granted=0)
    bad_run, good_run = await Play(db, bad).start(), await Play(db, good).start()
    await sql(db, "UPDATE runs SET retry = retry || '{\"new_field\": 1}' WHERE id = :r", r=bad_run)
    await sql(
        db,
        "UPDATE tenant_slots SET last_admitted_at = clock_timestamp() WHERE tenant_id = :t",
        t=good,
    )  # the bad one has its turn first
    shared = await make_shared(db)
    loop = AdmitLoop(shared)
    for _ in range(3):
        await loop.run_once(await look_once(shared))
    assert (await Play(db, good).read(good_run)).state.status == "running"


async def test_a_claim_of_an_unknown_worker_is_not_a_death(play, db):
    """INV15: five claims of a live process whose row is gone would make its run poison."""
    runtime = await make_runtime(db)
    await sql(db, "DELETE FROM workers WHERE incarnation = :w", w=runtime.worker)
    run_id = await play.start()
    shared = await make_shared(db)
    reap = ReapLoop(shared)
    for _ in range(5):
        version = (await play.read(run_id)).version
        assert await play.try_claim(run_id, version, runtime.worker) is not None
        assert await reap.run_once(await look_once(shared)) == 1
    run = await play.read(run_id)
    assert run.state.status == "running", run.state.stop_reason
    assert run.state.deaths == 0


async def test_the_answer_of_a_standby_does_not_end_the_heartbeat(database_url):
    """INV8: 25006 (read-only, during a fail-over) is an InternalError, not an OperationalError."""
    async with Database(database_url, DatabaseSettings(pool_min=1, pool_max=1)) as db:
        runtime = await make_runtime(db)
        async with db.connection() as conn:
            await pg(conn).execute("SET default_transaction_read_only = on")
        async with beating(runtime) as task:
            await asyncio.sleep(0.6)
            assert not task.done(), repr(task.exception())
