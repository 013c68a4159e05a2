"""A burst of starts of one tenant leaves the others their connections."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from harness_common.commands import StartRun, start_run
from harness_common.core.run import TERMINAL
from harness_common.logins import derive
from harness_common.settings import DatabaseSettings
from harness_common.store.connection import RowsHeld
from harness_common.store.db import Database
from tests.store.play import Play, make_tenant, sql

pytestmark = pytest.mark.anyio
HOLD = "SELECT 1 FROM tenant_slots WHERE tenant_id = %s FOR UPDATE"


def few(database_url, timeout_s: float = 10.0) -> Database:
    config = DatabaseSettings(pool_max=2, timeout_s=timeout_s)
    return Database(derive(database_url, "api"), config)


async def test_other_tenants_start_while_one_has_to_wait(play, db, database_url):
    await play.start()  # each tenant has its agent
    other = Play(db, await make_tenant(db))
    async with few(database_url) as api:
        with psycopg.connect(database_url) as holder:
            holder.execute(HOLD, (play.tenant_id,))
            burst = [
                asyncio.create_task(start_run(api, play.tenant_id, StartRun("a", "hi")))
                for _ in range(8)
            ]
            await asyncio.sleep(0.3)
            async with asyncio.timeout(3):
                await start_run(api, other.tenant_id, StartRun("a", "hi"))
            assert not any(one.done() for one in burst)
        started = await asyncio.gather(*burst)
    assert len({one.run_id for one in started}) == 8
    assert not any(one.status in TERMINAL for one in started)


async def test_who_waits_too_long_is_told_and_the_next_one_can_start(play, db, database_url):
    async with few(database_url, timeout_s=1.0) as api:
        with psycopg.connect(database_url) as holder:
            holder.execute(HOLD, (play.tenant_id,))
            burst = [start_run(api, play.tenant_id, StartRun("a", "hi")) for _ in range(3)]
            ends = await asyncio.gather(*burst, return_exceptions=True)
        assert any(isinstance(end, RowsHeld) for end in ends)
        assert all(isinstance(end, Exception) for end in ends)
        run_id = (await start_run(api, play.tenant_id, StartRun("a", "hi"))).run_id
    assert [row["id"] for row in await sql(db, "SELECT id FROM runs")] == [run_id]
