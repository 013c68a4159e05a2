"""The hourly upkeep: what is past its time goes in batches, and nothing else waits for it."""

from __future__ import annotations

import asyncio
import contextlib
from uuid import UUID

import psycopg
import pytest

from harness_common.settings import DatabaseSettings, Settings
from harness_common.store.db import Database
from harness_worker.scheduler.prune import BATCH, PruneLoop
from harness_worker.scheduler.service import look_once
from tests.store.play import sql
from tests.store.test_scheduler import lead
from tests.worker.runtime import make_shared

DAY_S = 24 * 3600.0


async def make_keys(db: Database, tenant_id: UUID, count: int) -> None:
    """Make idempotency keys whose time is over."""
    await sql(
        db,
        "INSERT INTO idempotency_keys (tenant_id, route, key, body_digest, created_at) "
        "SELECT :t, 'r', n::text, '', clock_timestamp() - interval '2 days' "
        "FROM generate_series(1, :n) AS n",
        t=tenant_id,
        n=count,
    )


async def keys_left(db: Database) -> int:
    (row,) = await sql(db, "SELECT count(*) AS n FROM idempotency_keys")
    return int(row["n"])


async def test_much_goes_in_batches_soon_one_after_another(db, tenant_id, database_url):
    """All at once it takes longer than a statement may, every time: nothing would ever go."""
    shared = await make_shared(db, settings=Settings(database_url=database_url))
    await make_keys(db, tenant_id, BATCH + 10)
    loop = PruneLoop(shared)
    assert await loop.run_once(await look_once(shared)) >= BATCH
    assert await keys_left(db) == 10
    assert await loop.run_once(await look_once(shared)) == 0, "not at once"
    async with asyncio.timeout(10):
        while await keys_left(db):
            await loop.run_once(await look_once(shared))
            await asyncio.sleep(0.05)


async def test_upkeep_that_takes_too_long_holds_up_no_other_duty(db, tenant_id, database_url):
    shared = await make_shared(db, settings=Settings(database_url=database_url))
    await make_keys(db, tenant_id, 3)
    with psycopg.connect(database_url) as conn:
        conn.execute("SELECT 1 FROM idempotency_keys FOR UPDATE")
        async with Database(database_url, DatabaseSettings(timeout_s=0.5, pool_max=2)) as hasty:
            await hasty.ready()
            shared.db = hasty
            assert await PruneLoop(shared).run_once(await look_once(shared)) >= 0
    assert await keys_left(db) == 3


@pytest.mark.parametrize(
    ("make", "renew", "prune", "left"),
    [
        (
            "INSERT INTO idempotency_keys (tenant_id, route, key, body_digest, created_at) "
            "VALUES (:t, 'r', 'k', '', clock_timestamp() - interval '2 days')",
            "UPDATE idempotency_keys SET created_at = clock_timestamp()",
            "prune",
            "SELECT 1 FROM idempotency_keys",
        ),
        (
            "INSERT INTO memories (tenant_id, scope, body, digest, expires_at) "
            "VALUES (:t, 'a', 'b', 'd', clock_timestamp() - interval '1 s')",
            "UPDATE memories SET expires_at = clock_timestamp() + interval '1 day'",
            "memory_purge",
            "SELECT 1 FROM memories",
        ),
    ],
    ids=["key", "fact"],
)
async def test_what_is_renewed_in_that_very_moment_stays(
    db, tenant_id, database_url, make, renew, prune, left
):
    shared = await lead(db)
    await sql(db, make, t=tenant_id)
    params = {"key_ttl_s": DAY_S, "firings_days": 90, "term": shared.term, "most": 10}
    with psycopg.connect(database_url) as conn:
        conn.execute(renew)
        pruning = asyncio.create_task(db.fetch(prune, params))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(pruning), 0.3)  # it waits for the row
        assert not pruning.done()
        conn.commit()
    await pruning
    assert len(await sql(db, left)) == 1
