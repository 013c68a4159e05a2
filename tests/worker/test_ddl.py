import asyncio

import psycopg

from harness_common.settings import DatabaseSettings, SchedulerSettings, Settings
from harness_common.store.db import Database
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.prune import PruneLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import Play, say, sql


async def test_expand_migration_does_not_break_prepared_statements(play, database_url):
    async with Database(database_url, DatabaseSettings(pool_max=1)) as db:
        p = Play(db, play.tenant_id)
        run_id = await p.start()
        for _ in range(4):
            await p.read(run_id)
        await sql(play.db, "ALTER TABLE runs ADD COLUMN expand_me int")
        errors = []
        for _ in range(5):
            try:
                await p.read(run_id)
            except Exception as e:
                errors.append(f"{type(e).__name__}: {e}")
    await sql(play.db, "ALTER TABLE runs DROP COLUMN expand_me")
    assert not errors, errors


async def test_partitions_ahead_do_not_stop_commits(play, db, database_url):
    """A long reader (a backup) holds the tables: the upkeep gives way, and commits go on."""
    run = await play.claim(await play.start())
    await sql(db, "DROP TABLE IF EXISTS events_20990105")
    async with await psycopg.AsyncConnection.connect(database_url) as reader:
        await reader.execute("SELECT 1 FROM events LIMIT 1")
        await reader.execute("SELECT 1 FROM checkpoints LIMIT 1")
        settings = Settings(
            database_url=database_url, scheduler=SchedulerSettings(partitions_ahead_weeks=12)
        )
        shared = Shared(settings, db, None, None, None)
        upkeep = asyncio.create_task(PruneLoop(shared).run_once(await look_once(shared)))
        await asyncio.sleep(0.5)
        await play.settle(run, say("x"), patience_s=5.0)
        assert await upkeep == 0
        await reader.rollback()
