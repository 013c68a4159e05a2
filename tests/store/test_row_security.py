"""Row-level security: what each login sees and does, on every table, for two tenants."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from psycopg import errors, sql
from sqlalchemy import create_engine

from harness_common import store
from harness_common.embedded import create_database, drop_database
from harness_common.logins import derive
from harness_common.settings import DatabaseSettings
from harness_common.store.connection import DatabaseUnavailable, run_sql
from harness_common.store.db import Database, sqlalchemy_url
from harness_common.store.migrate import alembic_config, migrate
from harness_common.store.postgres import pg
from harness_common.store.postgres import sql as statement_of
from tests.store.plans import numbered
from tests.store.play import make_tenant
from tests.store.tenancy import TENANT_TABLES, add_row, problems, two_tenants

NAMES = [t.name for t in TENANT_TABLES]
DAMAGES = {
    "ALTER TABLE runs NO FORCE ROW LEVEL SECURITY": "runs: row-level security is not enabled",
    "ALTER TABLE audit DISABLE ROW LEVEL SECURITY": "audit: row-level security is not enabled",
    "DROP POLICY of_tenant ON schedules": "schedules: its policies are",
    "CREATE POLICY more ON agents FOR SELECT TO harness_api USING (true)": "agents: its policies",
    "CREATE TABLE forgotten (tenant_id uuid, id uuid)": "forgotten: row-level security",
    "CREATE TABLE shared (name text)": "shared: has no tenant_id and is not known",
    "GRANT SELECT ON leader TO PUBLIC": "leader: harness_api may ['SELECT']",
    "GRANT TRUNCATE ON runs TO harness_api": "runs: harness_api may ['TRUNCATE']",
    "GRANT DELETE ON audit TO harness_api": "audit: harness_api may ['DELETE']",
    "REVOKE SELECT ON inputs FROM harness_system": "inputs: harness_system may not ['SELECT']",
    "CREATE UNIQUE INDEX nosy ON schedules (name)": "nosy of schedules is unique over all tenants",
    "CREATE VIEW all_runs AS SELECT * FROM runs": "the view all_runs shows what its owner sees",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'": "f() runs with",
    "ALTER ROLE harness_api BYPASSRLS": "harness_api is too mighty",
    "GRANT harness_system TO harness_api": "harness_api has the rights of harness_system",
    "ALTER TABLE inputs OWNER TO harness_api": "inputs belongs to harness_api",
}
"""What a careless migration or administrator might do, and what is said about it."""
FORBIDDEN = [
    "CREATE TABLE mine (a int)",
    "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "CREATE ROLE friend",
    "ALTER TABLE runs DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE runs NO FORCE ROW LEVEL SECURITY",
    "ALTER ROLE harness_api BYPASSRLS",
    "DROP POLICY of_tenant ON runs",
    "CREATE POLICY more ON runs TO harness_api USING (true)",
    "DROP TABLE inputs",
    "TRUNCATE runs",
    "BEGIN; LOCK TABLE leader IN EXCLUSIVE MODE",
    "SET ROLE harness_system",
    "SET ROLE harness",
    "SET SESSION AUTHORIZATION harness",
    "SELECT * FROM pg_authid",
    "SELECT * FROM leader",
    "SELECT make_partition('events', clock_timestamp())",
    "SELECT pg_read_file('/etc/passwd')",
    "COPY runs TO PROGRAM 'true'",
    "SET row_security = off; SELECT * FROM runs",
    "INSERT INTO tenants (name) VALUES ('x')",
    "DELETE FROM audit",
    "UPDATE events SET type = 'x'",
]


@pytest.fixture
def owner(database_url):
    """Connect as the owner, in a transaction that is rolled back."""
    with psycopg.connect(database_url) as conn:
        yield conn
        conn.rollback()


@pytest.fixture
def api_url(database_url) -> str:
    return derive(database_url, "api")


@pytest.fixture
def api(api_url):
    with psycopg.connect(api_url, autocommit=True) as conn:
        yield conn


def test_nobody_may_see_or_do_more_than_is_meant(owner):
    assert problems(owner) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_in_the_catalogue_is_found(owner, damage):
    owner.execute(damage)
    assert any(p.startswith(DAMAGES[damage]) for p in problems(owner)), problems(owner)


@pytest.fixture
def as_api(owner):
    """Act as the API with all rights on every table, so that only the policies are left; give a
    connection and the ids of two tenants that have a row everywhere.
    """
    tenants = two_tenants(owner)
    for name in NAMES:
        owner.execute(sql.SQL("GRANT ALL ON {} TO harness_api").format(sql.Identifier(name)))
    owner.execute("SET LOCAL ROLE harness_api")
    return owner, *tenants


def be(conn, tenant_id):
    conn.execute("SELECT set_config('app.tenant', %s, true)", (str(tenant_id or ""),))


def on(table, text):
    return sql.SQL(text).format(table=sql.Identifier(table))


@pytest.mark.parametrize("name", NAMES)
def test_two_tenants_on_every_table(as_api, name):
    conn, a, b = as_api
    table = next(t for t in TENANT_TABLES if t.name == name)
    seen = on(name, "SELECT tenant_id FROM {table}")
    touch = on(name, "UPDATE {table} SET tenant_id = tenant_id")
    assert conn.execute(seen).fetchall() == []  # no tenant was ever named
    be(conn, None)
    assert conn.execute(seen).fetchall() == []
    assert conn.execute(touch).rowcount == 0
    assert conn.execute(on(name, "DELETE FROM {table}")).rowcount == 0
    be(conn, a)
    assert conn.execute(seen).fetchall() == [(a,)]
    assert conn.execute(touch).rowcount == 1
    theirs = on(name, "UPDATE {table} SET tenant_id = tenant_id WHERE tenant_id = %s")
    assert conn.execute(theirs, (b,)).rowcount == 0
    gone = on(name, "DELETE FROM {table} WHERE tenant_id = %s")
    assert conn.execute(gone, (b,)).rowcount == 0
    (fresh,) = conn.execute("SELECT uuid7()").fetchone()
    give_away = on(name, "UPDATE {table} SET tenant_id = %s")
    for act in (
        lambda: conn.execute(give_away, (b,)),
        lambda: add_row(conn, table, b, fresh),
        lambda: add_row(conn, table, uuid4(), fresh),
    ):
        refused = pytest.raises(errors.InsufficientPrivilege, match="row-level security")
        with refused, conn.transaction():
            act()
    if name == "tenants":
        return  # other rows refer to it
    conn.execute("SET CONSTRAINTS ALL DEFERRED")
    be(conn, b)
    assert conn.execute(seen).fetchall() == [(b,)]


@pytest.mark.parametrize("name", ["messages", "audit", "schedule_firings", "tool_calls", "usage"])
def test_a_tenant_deletes_its_own_rows_and_no_others(as_api, name):
    conn, a, b = as_api
    be(conn, a)
    assert conn.execute(on(name, "DELETE FROM {table}")).rowcount == 1
    be(conn, b)
    assert len(conn.execute(on(name, "SELECT FROM {table}")).fetchall()) == 1


def test_a_partition_is_closed_to_whoever_comes_directly(owner, api):
    a, _ = two_tenants(owner)
    query = "SELECT tableoid::regclass::text FROM {} WHERE tenant_id = %s"
    for parent in ("events", "checkpoints"):
        statement = sql.SQL(query).format(sql.Identifier(parent))
        (partition,) = owner.execute(statement, (a,)).fetchone()
        with pytest.raises(errors.InsufficientPrivilege):
            api.execute(on(partition, "SELECT * FROM {table}"))
        owner.execute(on(partition, "GRANT ALL ON {table} TO harness_api, harness_system"))
        for role in ("harness_api", "harness_system"):
            with owner.transaction(force_rollback=True):
                owner.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
                be(owner, a)
                assert owner.execute(on(partition, "SELECT * FROM {table}")).fetchall() == []


@pytest.mark.parametrize("statement", FORBIDDEN)
def test_what_the_api_cannot_do(api, statement):
    with pytest.raises(errors.InsufficientPrivilege):
        api.execute(statement.encode())


def test_the_system_sees_every_tenant_and_owns_nothing(owner):
    a, b = two_tenants(owner)
    owner.execute("SET LOCAL ROLE harness_system")
    for name in NAMES:
        found = owner.execute(on(name, "SELECT tenant_id FROM {table}")).fetchall()
        assert {(a,), (b,)} <= set(found), name
    with pytest.raises(errors.InsufficientPrivilege):
        owner.execute("ALTER TABLE runs DISABLE ROW LEVEL SECURITY")


def test_only_a_tenant_that_runs_the_platform_changes_its_limits(owner):
    a, b = two_tenants(owner)
    owner.execute("UPDATE tenants SET operator = true WHERE tenant_id = %s", (a,))
    owner.execute("INSERT INTO platform (name) VALUES ('global') ON CONFLICT DO NOTHING")
    owner.execute("SET LOCAL ROLE harness_api")
    change = "UPDATE platform SET max_running = 1 WHERE name = 'global'"
    for tenant_id, rows in ((None, 0), (b, 0), (a, 1)):
        be(owner, tenant_id)
        assert owner.execute(change).rowcount == rows
    be(owner, b)
    with pytest.raises(errors.InsufficientPrivilege, match="row-level security"):
        owner.execute("INSERT INTO platform (name) VALUES ('mine')")


async def keys_of(db: Database) -> list:
    async with db.connection() as conn:
        return await (await pg(conn).execute("SELECT * FROM api_keys")).fetchall()


async def test_a_key_is_found_by_its_public_part_and_in_no_other_way(db, api_url, owner):
    tenant_id = await make_tenant(db)
    async with db.transaction() as conn:
        for public_id in ("one", "two"):
            await conn.execute(
                "INSERT INTO api_keys (tenant_id, name, public_id, secret_hash, role) "
                "VALUES (%s, 'k', %s, '', 'admin')",
                (tenant_id, public_id),
            )
    async with Database(api_url, bound=True) as narrow:
        found = await narrow.fetch("key_find", {"public_id": "one"})
        assert [(r["public_id"], r["tenant_id"]) for r in found] == [("one", tenant_id)]
        assert await narrow.fetch("key_find", {"public_id": "%"}) == []
        assert await keys_of(narrow) == []


# --- connections that are used again -------------------------------------------------------------


@pytest.fixture
async def one(db, api_url):
    """Open the API's pool with a single connection, so that the next user gets the same."""
    config = DatabaseSettings(pool_max=1, timeout_s=5.0)
    async with Database(api_url, config, bound=True) as opened:
        await opened.ready()
        yield opened


async def left_behind(db: Database) -> tuple[str, int]:
    """Return what the next user of the connection finds: the tenant, and how many agents."""
    async with db.connection() as conn:
        query = (
            "SELECT coalesce(current_setting('app.tenant', true), '') AS tenant, "
            "(SELECT count(*) FROM agents) AS agents, pg_backend_pid() AS pid"
        )
        (row,) = await (await pg(conn).execute(query)).fetchall()
        return row["tenant"], row["agents"]


async def agents_in(db: Database, tenant_id) -> int:
    async with db.tenant_transaction(tenant_id) as conn:
        (row,) = await (await pg(conn).execute("SELECT count(*) AS n FROM agents")).fetchall()
        return int(row["n"])


async def fails(db, tenant_id):
    async with db.tenant_transaction(tenant_id) as conn:
        await conn.execute("SELECT 1/0")


async def raises(db, tenant_id):
    async with db.tenant_transaction(tenant_id):
        raise KeyError


async def times_out(db, tenant_id):
    async with db.tenant_transaction(tenant_id) as conn:
        await conn.execute("SET LOCAL statement_timeout = 50")
        await conn.execute("SELECT pg_sleep(10)")


async def is_cancelled(db, tenant_id):
    async with asyncio.timeout(0.2), db.tenant_transaction(tenant_id) as conn:
        await conn.execute("SELECT pg_sleep(10)")


ENDS = {
    fails: errors.DivisionByZero,
    raises: KeyError,
    times_out: DatabaseUnavailable,
    is_cancelled: TimeoutError,
}


async def test_a_tenant_does_not_outlast_its_transaction(db, one):
    first, second = await make_tenant(db), await make_tenant(db)
    assert await agents_in(one, first) == 1
    assert await left_behind(one) == ("", 0)
    for act, error in ENDS.items():
        with pytest.raises(error):
            await act(one, first)
        assert await left_behind(one) == ("", 0), act.__name__
        assert await agents_in(one, second) == 1


async def test_a_setting_of_the_session_would_outlast_it(db, one):
    """The same eyes see a leak where there is one."""
    tenant_id = await make_tenant(db)
    async with one.connection() as conn:
        await conn.execute("SELECT set_config('app.tenant', %s, false)", (str(tenant_id),))
    assert await left_behind(one) == (str(tenant_id), 1)


async def test_the_tenant_costs_no_round_trip(one, tmp_path: Path):
    async with one.connection() as conn:
        pgconn = conn.pgconn
    with (tmp_path / "trace").open("w+") as file:
        pgconn.trace(file.fileno())
        async with one.tenant_transaction(uuid4()) as conn:
            await run_sql(conn, "agent_read", {"tenant_id": uuid4(), "agent_id": uuid4()}, 5.0)
        pgconn.untrace()
        file.seek(0)
        answers = [line for line in file if "ReadyForQuery" in line]
    assert len(answers) == 3  # BEGIN with the tenant, the statement, COMMIT


# --- a login that is not the API's ---------------------------------------------------------------


@pytest.mark.parametrize("login", ["owner", "system"])
async def test_a_login_that_sees_everything_is_refused(database_url, login):
    config = DatabaseSettings(timeout_s=1.0)
    async with Database(derive(database_url, login), config, bound=True) as db:
        with pytest.raises(DatabaseUnavailable):
            await db.fetch("key_find", {"public_id": "x"})


def test_an_owner_that_is_no_superuser(store_postgres):
    """As on a managed server: it makes the roles, and is refused as the API's login."""
    admin, name = store_postgres.admin_url, f"t_{uuid4().hex}"
    url = create_database(admin, name)
    with psycopg.connect(admin, autocommit=True) as conn:
        conn.execute("DROP ROLE IF EXISTS landlord")
        conn.execute("CREATE ROLE landlord LOGIN CREATEROLE PASSWORD 'pass'")
        conn.execute(
            "GRANT harness_api, harness_system TO landlord "
            "WITH ADMIN TRUE, INHERIT FALSE, SET FALSE"
        )
        conn.execute(sql.SQL("ALTER DATABASE {} OWNER TO landlord").format(sql.Identifier(name)))
    mine = url.replace(url.split("://")[1].split("@")[0], "landlord:pass")
    try:
        migrate(mine, 1)
        with psycopg.connect(url) as conn:
            assert problems(conn) == []
            a, _ = two_tenants(conn)
            conn.commit()
        with psycopg.connect(mine) as conn:  # a later migration can change rows
            assert conn.execute("UPDATE agents SET created_by = 'x'").rowcount == 2
            ((_, bound),) = conn.execute(statement_of("bound")).fetchall()
            assert not bound
        with psycopg.connect(derive(mine, "api"), autocommit=True) as conn:
            with pytest.raises(errors.InsufficientPrivilege):
                conn.execute("CREATE TEMPORARY TABLE mine (a int)")
            with pytest.raises(errors.InsufficientPrivilege):
                conn.execute("SET ROLE landlord")
            with conn.transaction():
                be(conn, a)
                assert conn.execute("SELECT tenant_id FROM runs").fetchall() == [(a,)]
    finally:
        drop_database(admin, name)
        # The passwords of the two roles are the server's: give them back to the other tests.
        migrate(store_postgres.url.rpartition("/")[0] + "/store_template", 1)


# --- the hot path --------------------------------------------------------------------------------

STATEMENTS = sorted(p.stem for p in (Path(store.__file__).parent / "sql").glob("*.sql"))
STATEMENTS.remove("tenant_ensure")  # its parameters have no types of their own, and it runs once


def plan(conn, name):
    """Return the plan, but for the order of the parts of a condition or a key."""
    asked = f"EXPLAIN (GENERIC_PLAN, COSTS OFF) {numbered(name)}"
    rows = conn.execute(asked.encode()).fetchall()
    return [
        sorted(re.findall(r"[\w.]+", line))
        if any(what in line for what in ("Cache Key: ", "Filter: ", "Cond: "))
        else line
        for (line,) in rows
    ]


@pytest.mark.parametrize("name", STATEMENTS)
def test_the_system_role_keeps_the_plan_of_every_statement(owner, name):
    owner.execute("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off")
    before = plan(owner, name)
    owner.execute("SET LOCAL ROLE harness_system")
    assert plan(owner, name) == before


def test_it_can_be_undone_and_done_again(fresh_database_url):
    engine = create_engine(sqlalchemy_url(fresh_database_url))
    with engine.connect() as connection:
        command.downgrade(alembic_config(connection), "0010-1")
        connection.commit()
    engine.dispose()
    with psycopg.connect(fresh_database_url) as conn:
        assert conn.execute("SELECT count(*) FROM pg_policy").fetchall() == [(0,)]
        conn.execute("SELECT uuid7()")
    migrate(fresh_database_url)
    with psycopg.connect(fresh_database_url) as conn:
        assert problems(conn) == []
