import asyncio
from types import SimpleNamespace
from uuid import uuid4

from harness_common.settings import DatabaseSettings, Settings
from harness_common.store.db import Database
from harness_worker.heartbeat import heartbeat_loop
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.reap import ReapLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import Play, make_tenant, sql
from tests.worker.runtime import Bell, make_runtime


async def shared_of(db):
    lead = Leadership(db, uuid4(), "t", 60)
    await sql(db, "DELETE FROM leader")

    async def brk(*a):
        pass

    return Shared(Settings(), db, None, SimpleNamespace(break_lease=brk), Bell(), await lead.seek())


async def test_one_unreadable_queued_run_stops_admission_of_all(db):
    bad, good = await make_tenant(db, granted=0), await make_tenant(db, granted=0)
    b, g = await Play(db, bad).start(), await Play(db, good).start()
    await sql(db, "UPDATE runs SET retry = retry || '{\"new_field\": 1}' WHERE id=:r", r=b)
    s = await shared_of(db)
    loop = AdmitLoop(s)
    await sql(
        db,
        "UPDATE tenant_slots SET last_admitted_at = clock_timestamp() WHERE tenant_id=:t",
        t=good,
    )
    err = None
    for _ in range(3):
        try:
            await loop.run_once(await look_once(s))
        except Exception as e:
            err = e
    r = await Play(db, good).read(g)
    await sql(
        db,
        "UPDATE runs SET status='cancelled', retry = retry - 'new_field', wake_at=NULL WHERE id=:r",
        r=b,
    )
    assert r.state.status == "running", f"the neighbour tenant stays {r.state.status}: {err!r}"


async def test_a_zombie_poisons_healthy_runs(play, db):
    """No worker row (pruned) or a heartbeat that ended: each claim of a live process is taken for a death."""
    rt = await make_runtime(db)
    await sql(db, "DELETE FROM workers WHERE incarnation=:w", w=rt.worker)
    run_id = await play.start()
    s = await shared_of(db)
    reap = ReapLoop(s)
    for _ in range(5):
        r = await play.read(run_id)
        if r.state.status != "running":
            break
        await play.try_claim(run_id, r.version, rt.worker)
        await reap._recover()
    r = await play.read(run_id)
    assert r.state.status == "running", (
        f"{r.state.status} {r.state.stop_reason} although no process died"
    )


async def test_a_standby_answer_does_not_end_the_heartbeat(database_url):
    """During a fail-over the pool lands on a read-only server: 25006 is an InternalError, not an OperationalError."""
    async with Database(database_url, DatabaseSettings(pool_min=1, pool_max=1)) as db:
        rt = await make_runtime(db)
        async with db.connection() as c:
            await c.execute("SET default_transaction_read_only = on")
        t = asyncio.create_task(heartbeat_loop(rt))
        await asyncio.sleep(0.6)
        assert not t.done(), repr(t.exception())
