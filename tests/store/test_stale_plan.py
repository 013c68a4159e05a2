"""A migration under a running process: its prepared plans no longer fit, and it notices."""

from __future__ import annotations

import psycopg
import pytest

from harness_common.logins import derive
from harness_common.store.db import Database, DatabaseUnavailable, run_sql
from tests.store.play import Play, make_tenant

_USES = 12
"""After so many a statement is prepared, with a plan for any parameters."""


async def test_a_statement_of_its_own_survives_a_migration(fresh_database_url):
    async with Database(derive(fresh_database_url, "system")) as db:
        await db.ready()
        play = Play(db, await make_tenant(db))
        params = {"tenant_id": play.tenant_id, "run_id": await play.start()}
        (before,) = await db.fetch("run_view", params)
        for _ in range(_USES):
            await db.fetch("run_view", params)
        with psycopg.connect(fresh_database_url, autocommit=True) as owner:
            owner.execute("ALTER TABLE runs ADD COLUMN later int")
        (after,) = await db.fetch("run_view", params)
        assert after["id"] == before["id"]


async def test_within_a_transaction_it_is_said_and_the_connection_is_not_used_again(
    fresh_database_url,
):
    async with Database(derive(fresh_database_url, "system")) as db:
        await db.ready()
        play = Play(db, await make_tenant(db))
        params = {"tenant_id": play.tenant_id, "run_id": await play.start()}

        async def read() -> None:
            async with db.transaction() as conn:
                await run_sql(conn, "run_view", params, db.timeout_s)

        for _ in range(_USES):
            await read()
        with psycopg.connect(fresh_database_url, autocommit=True) as owner:
            owner.execute("ALTER TABLE runs ADD COLUMN later int")
        with pytest.raises(DatabaseUnavailable, match="cached plan"):
            await read()
        await read()
