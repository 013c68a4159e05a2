"""Changes of the schema while the processes work."""

from __future__ import annotations

import asyncio

import psycopg

from harness_common.logins import derive
from harness_common.settings import DatabaseSettings, SchedulerSettings, Settings
from harness_common.store.db import Database
from harness_worker.scheduler.prune import PruneLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import Play, say, sql
from tests.worker.runtime import make_shared


async def test_an_expand_migration_does_not_break_prepared_statements(play, database_url):
    """INV20: every process would fail with "cached plan must not change result type"."""
    system = derive(database_url, "system")
    async with (
        Database(system, DatabaseSettings(pool_max=1)) as db,
        Database(database_url, DatabaseSettings(pool_max=1)) as owner,
    ):
        reader = Play(db, play.tenant_id)
        run_id = await reader.start()
        for _ in range(4):
            await reader.read(run_id)
        await sql(owner, "ALTER TABLE runs ADD COLUMN expand_me int")
        try:
            for _ in range(5):
                await reader.read(run_id)
        finally:
            await sql(owner, "ALTER TABLE runs DROP COLUMN expand_me")


async def test_partitions_ahead_do_not_stop_commits(play, db, database_url):
    """INV11: upkeep that waits for a long reader (a backup) would hold up every commit."""
    run = await play.claim(await play.start())
    settings = Settings(
        database_url=database_url, scheduler=SchedulerSettings(partitions_ahead_weeks=12)
    )
    shared = await make_shared(db, settings=settings)
    async with await psycopg.AsyncConnection.connect(database_url) as reader:
        await reader.execute("SELECT 1 FROM events LIMIT 1")
        await reader.execute("SELECT 1 FROM checkpoints LIMIT 1")
        upkeep = asyncio.create_task(PruneLoop(shared).run_once(await look_once(shared)))
        await asyncio.sleep(0.5)
        await play.settle(run, say("x"), patience_s=5.0)
        assert await upkeep == 0
        await reader.rollback()
    assert await PruneLoop(shared).run_once(await look_once(shared)) > 0, "nothing was in its way"
