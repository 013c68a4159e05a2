import asyncio

from harness_worker.heartbeat import beat, heartbeat_loop
from tests.store.play import sql
from tests.worker.runtime import make_runtime


async def test_one_unreadable_claim_kills_the_heartbeat(play, db):
    """give_back -> run_from_row raises TypeError (a newer API wrote one more field in `retry`): the loop ends for good."""
    rt = await make_runtime(db)
    run_id = await play.start()
    await play.try_claim(run_id, 1, rt.worker)
    await sql(
        db,
        "UPDATE runs SET retry = retry || '{\"new_field\": 1}', claimed_at = claimed_at - interval '1 hour' WHERE id=:r",
        r=run_id,
    )
    task = asyncio.create_task(heartbeat_loop(rt))
    await asyncio.sleep(1.0)
    await sql(
        db,
        "UPDATE runs SET status='cancelled', claim_id=NULL, claimed_by=NULL, wake_at=NULL, retry = retry - 'new_field' WHERE id=:r",
        r=run_id,
    )
    assert not task.done(), f"heartbeat loop ended: {task.exception()!r}"


async def test_a_pruned_worker_comes_back(play, db):
    """A worker cut off from Postgres for more than an hour: prune dropped its row. It never announces itself again."""
    rt = await make_runtime(db)
    await sql(db, "DELETE FROM workers WHERE incarnation=:w", w=rt.worker)  # = prune.sql
    await beat(rt)
    await beat(rt)
    rows = await sql(db, "SELECT 1 FROM workers WHERE incarnation=:w", w=rt.worker)
    run_id = await play.start()
    await play.try_claim(run_id, 1, rt.worker)
    look = await db.fetch_one("look", {"lease_s": 15.0})
    assert rows and not look["orphaned"], (
        "every claim of this live worker is an orphan at once (5 of them = poisoned)"
    )
