"""A migration under a running process: its prepared plans no longer fit, and it notices."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import text

from harness_common.logins import derive
from harness_common.store.connection import DatabaseUnavailable, Row, run_sql, run_together
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
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
                await run_sql(conn, "slots_hold", params, db.timeout_s)
                await run_sql(conn, "run_view", params, db.timeout_s)

        for _ in range(_USES):
            await read()
        with psycopg.connect(fresh_database_url, autocommit=True) as owner:
            owner.execute("ALTER TABLE runs ADD COLUMN later int")
        with pytest.raises(DatabaseUnavailable, match="cached plan"):
            await read()
        await read()


@pytest.mark.parametrize("together", [False, True])
async def test_the_first_thing_that_a_transaction_does_is_done_again_with_a_new_plan(
    fresh_database_url, together
):
    """Every read of the API is one: each connection would refuse one request after a migration."""
    async with Database(derive(fresh_database_url, "api"), bound=True) as db:
        await db.ready()
        async with Database(derive(fresh_database_url, "system")) as system:
            play = Play(system, await make_tenant(system))
            run_id = await play.start()
        params = {"tenant_id": play.tenant_id, "run_id": run_id}
        statements = [("run_exists", params), ("run_view", params)][0 if together else 1 :]

        async def read() -> list[Row]:
            async with db.tenant_transaction(play.tenant_id) as conn:
                *_, found = await run_together(conn, statements, db.timeout_s)
                (tenant,) = await run_core(
                    conn, text("SELECT current_setting('app.tenant') AS t"), db.timeout_s
                )
                assert tenant["t"] == str(play.tenant_id)
                return found

        for _ in range(_USES):
            await read()
        with psycopg.connect(fresh_database_url, autocommit=True) as owner:
            owner.execute("ALTER TABLE runs ADD COLUMN later int")
        (row,) = await read()
        assert row["id"] == run_id
        (row,) = await read()
        assert row["id"] == run_id
