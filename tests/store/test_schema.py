"""The database is what the code thinks it is."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, create_engine, text

from harness_common.store.db import sqlalchemy_url
from harness_common.store.migrate import migrate
from harness_common.store.partitions import PARTITIONED, ensure_partitions, lowest_id, week_start
from harness_common.store.schema import metadata
from tests.store.play import sql


def mine(name, kind):
    """Leave out partitions, which upkeep makes."""
    return not (kind == "table" and name.rpartition("_")[0] in PARTITIONED)


def test_migrations_give_the_schema(fresh_database_url):
    engine = create_engine(sqlalchemy_url(fresh_database_url))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={"compare_type": True, "include_name": lambda name, kind, _: mine(name, kind)},
        )
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_columns_constraints_and_defaults_are_those_of_the_metadata(fresh_database_url):
    """What `compare_metadata` does not look at: nullability, defaults and primary keys."""
    engine = create_engine(sqlalchemy_url(fresh_database_url))
    with engine.begin() as connection:
        schema = "CREATE SCHEMA wanted; SET search_path = wanted, public"
        before = dict(described(connection, "public"))
        connection.execute(text(schema))
        metadata.create_all(connection, checkfirst=False)
        wanted = dict(described(connection, "wanted"))
    engine.dispose()
    assert before == wanted


def described(connection, schema):
    columns = connection.execute(
        text(
            "SELECT table_name, column_name, data_type, is_nullable, "
            "replace(column_default, 'public.', '') FROM information_schema.columns "
            "WHERE table_schema = :s ORDER BY 1, 2"
        ),
        {"s": schema},
    )
    for table, column, *rest in columns:
        if mine(table, "table") and table != "alembic_version":
            yield (table, column), tuple(rest)
    keys = connection.execute(
        text(
            "SELECT c.relname, k.conname, replace(pg_get_constraintdef(k.oid), :s || '.', '') "
            "FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid "
            "WHERE c.relnamespace = cast(:s AS regnamespace) AND k.contype <> 'n'"
        ),
        {"s": schema},
    )
    for table, name, definition in keys:
        if mine(table, "table") and table != "alembic_version":
            yield (table, f"constraint {name}"), definition


def test_every_table_has_its_tenant_in_every_key():
    tenant_less = {"workers", "leader", "platform", "throttles", "tool_specs", "worker_tools"}
    for table in metadata.tables.values():
        if table.name in tenant_less:
            continue
        assert "tenant_id" in table.columns
        for key in table.constraints:
            if isinstance(key, PrimaryKeyConstraint | UniqueConstraint):
                names = {c.name for c in key.columns}
                assert "tenant_id" in names or table.name == "tenants", (table.name, names)


def test_migrating_again_changes_nothing(fresh_database_url):
    migrate(fresh_database_url)


async def test_uuid7(db):
    rows = await sql(
        db, "SELECT uuid7() AS id, clock_timestamp() AS now FROM generate_series(1, 500)"
    )
    ids = [r["id"] for r in rows]
    assert {i.version for i in ids} == {7}
    assert {i.variant for i in ids} == {"specified in RFC 4122"}
    assert len(set(ids)) == 500
    stamps = [i.int >> 80 for i in ids]
    assert stamps == sorted(stamps)
    for row, stamp in zip(rows, stamps, strict=True):
        assert abs(row["now"].timestamp() * 1000 - stamp) < 50


def test_partitions_are_there_ahead(fresh_database_url):
    engine = create_engine(sqlalchemy_url(fresh_database_url))
    with engine.begin() as connection:
        names = set(
            connection.execute(text("SELECT inhrelid::regclass::text FROM pg_inherits")).scalars()
        )
        now = datetime.now(UTC)
        for table in PARTITIONED:
            for week in range(-1, 9):
                assert f"{table}_{week_start(now + timedelta(weeks=week)):%Y%m%d}" in names
        assert ensure_partitions(connection, 8) == []
        made = ensure_partitions(connection, 10)
        assert len(made) == 4
        connection.rollback()
    engine.dispose()


async def test_a_run_that_is_older_or_younger_than_the_partitions_is_refused_loudly(db, tenant_id):
    statement = (
        "SELECT count(*) AS n FROM pg_partition_tree('events') WHERE isleaf AND pg_get_expr("
        "(SELECT relpartbound FROM pg_class WHERE oid = relid), relid) = 'DEFAULT'"
    )
    assert (await sql(db, statement)) == [{"n": 0}]


def test_weeks():
    monday = datetime(2025, 3, 3, tzinfo=UTC)
    assert week_start(monday) == monday
    assert week_start(monday - timedelta(microseconds=1)) == monday - timedelta(weeks=1)
    assert lowest_id(monday) < lowest_id(monday + timedelta(milliseconds=1))
    assert lowest_id(datetime.fromtimestamp(time.time(), UTC)).int >> 80 > 0
