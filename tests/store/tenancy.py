"""Reading from the catalogue who may see what, and rows of every table for two tenants."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import ARRAY, Boolean, Date, DateTime, LargeBinary, Table, Text, Uuid, insert
from sqlalchemy.dialects.postgresql import JSON

from harness_common.store.core_sql import _DIALECT
from harness_common.store.schema import metadata

TENANT_TABLES = [t for t in metadata.sorted_tables if "tenant_id" in t.columns]
SHARED = {
    "alembic_version": {"SELECT"},
    "leader": set(),
    "platform": {"SELECT", "INSERT", "UPDATE"},
    "throttles": {"SELECT"},
    "tool_specs": {"SELECT"},
    "worker_tools": {"SELECT"},
    "workers": {"SELECT"},
}
"""Tables of no tenant, and what the API may do with them. A new one has to be named here."""
RECORDED = {
    "audit", "checkpoints", "events", "inputs", "messages", "policies", "skills", "tool_versions",
}  # fmt: skip
"""What the API may add to and never change."""
GIVEN = {
    "context_parts", "foreign_checkpoints", "foreign_writes", "repairs", "tenants", "usage",
}  # fmt: skip
"""What the API only reads of a tenant."""
GLOBAL_KEYS = {"tenants_name_key"}
"""Unique over all tenants: nobody but the system role can try a value."""
ABOVE_POLICIES = {
    "drop_partition", "find_api_key", "make_partition", "platform_queued", "platform_running",
    "platform_tenant_limit", "platform_tenant_list", "platform_tenants", "storage_of_tenants",
}  # fmt: skip
"""Functions that see more than their caller."""
_DML = {"SELECT", "INSERT", "UPDATE", "DELETE"}
_ALL = [*sorted(_DML), "TRUNCATE", "REFERENCES", "TRIGGER"]
_RULE = "(tenant_id = (NULLIF(current_setting('app.tenant'::text, true), ''::text))::uuid)"


def problems(conn: psycopg.Connection[Any]) -> list[str]:
    """List whatever in the database lets a role see or do more than it should."""
    return [
        *_roles(conn),
        *_tables(conn),
        *_shared(conn),
        *_keys(conn),
        *_functions(conn),
        *_views(conn),
    ]


def _roles(conn):
    query = (
        "SELECT rolname FROM pg_roles WHERE rolname IN ('harness_api', 'harness_system') AND "
        "(rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb OR rolreplication)"
    )
    yield from (f"{r} is too mighty" for (r,) in conn.execute(query))
    query = (
        "SELECT m.rolname, r.rolname FROM pg_auth_members a JOIN pg_roles m ON m.oid = a.member "
        "JOIN pg_roles r ON r.oid = a.roleid WHERE m.rolname LIKE 'harness_api%' "
        "AND r.rolname <> 'harness_api'"
    )
    yield from (f"{m} has the rights of {r}" for m, r in conn.execute(query))
    query = (
        "SELECT relname, relowner::regrole::text FROM pg_class WHERE relowner IN "
        "('harness_api'::regrole, 'harness_system'::regrole)"
    )
    yield from (f"{t} belongs to {r}" for t, r in conn.execute(query))


def _of_tenant(conn):
    return conn.execute(
        "SELECT c.oid, c.relname, c.relrowsecurity, c.relforcerowsecurity, c.relispartition "
        "FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id' "
        "AND NOT a.attisdropped WHERE c.relkind IN ('r', 'p') "
        "AND c.relnamespace = 'public'::regnamespace ORDER BY 2"
    ).fetchall()


def _tables(conn):
    for oid, name, enabled, forced, partition in _of_tenant(conn):
        if not enabled or not forced:
            yield f"{name}: row-level security is not enabled and forced"
        policies = conn.execute(
            "SELECT polname, polcmd, polpermissive, polroles::regrole[]::text, "
            "pg_get_expr(polqual, polrelid), pg_get_expr(polwithcheck, polrelid) "
            "FROM pg_policy WHERE polrelid = %s ORDER BY 1",
            (oid,),
        ).fetchall()
        wanted = [
            ("of_system", "*", True, "{harness_system}", "true", "true"),
            ("of_tenant", "*", True, "{harness_api}", _RULE, _RULE),
        ]
        if name == "tenant_keys":  # whoever runs the platform wraps them anew
            policies = [p for p in policies if p[0] not in {"operator_reads", "operator_changes"}]
        if policies != ([] if partition else wanted):
            yield f"{name}: its policies are {policies}"
        allowed = set() if partition else set(_DML)
        if name in RECORDED:
            allowed -= {"UPDATE", "DELETE"}
        if name in GIVEN:
            allowed &= {"SELECT"}
        yield from _rights(conn, name, allowed, set() if partition else _DML)


def _rights(conn, name, api, system):
    query = "SELECT p FROM unnest(%s::text[]) p WHERE has_table_privilege(%s, %s::regclass, p)"
    for role, allowed in (("harness_api", api), ("harness_system", system)):
        has = {p for (p,) in conn.execute(query, (_ALL, role, f"public.{name}"))}
        if has - allowed:
            yield f"{name}: {role} may {sorted(has - allowed)}"
        if role == "harness_system" and system - has:
            yield f"{name}: {role} may not {sorted(system - has)}"
        if role == "harness_api" and "SELECT" in allowed and "SELECT" not in has:
            yield f"{name}: {role} may not read it"


def _shared(conn):
    query = (
        "SELECT c.relname FROM pg_class c WHERE c.relkind IN ('r', 'p') "
        "AND c.relnamespace = 'public'::regnamespace AND NOT EXISTS (SELECT 1 FROM pg_attribute a "
        "WHERE a.attrelid = c.oid AND a.attname = 'tenant_id' AND NOT a.attisdropped)"
    )
    for (name,) in conn.execute(query).fetchall():
        if name not in SHARED:
            yield f"{name}: has no tenant_id and is not known as shared"
        else:
            yield from _rights(conn, name, SHARED[name], _DML)


def _keys(conn):
    query = (
        "SELECT i.relname, t.relname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid "
        "JOIN pg_class t ON t.oid = x.indrelid WHERE x.indisunique "
        "AND t.relnamespace = 'public'::regnamespace AND t.relname <> ALL(%s) AND NOT EXISTS "
        "(SELECT 1 FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attname = 'tenant_id' "
        "AND a.attnum = ANY(x.indkey::int2[]))"
    )
    for index, table in conn.execute(query, (list(SHARED),)):
        if index not in GLOBAL_KEYS:
            yield f"{index} of {table} is unique over all tenants"


def _functions(conn):
    query = (
        "SELECT p.proname, p.proconfig::text, has_function_privilege('public', p.oid, 'EXECUTE'), "
        "p.prosecdef FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND NOT EXISTS "
        "(SELECT 1 FROM pg_depend d WHERE d.objid = p.oid AND d.deptype = 'e')"
    )
    for name, settings, public, definer in conn.execute(query):
        if not definer:
            continue
        if name not in ABOVE_POLICIES:
            yield f"{name}() runs with the rights of its owner and is not known to"
        if "search_path=pg_catalog, public, pg_temp" not in (settings or "") or public:
            yield f"{name}() has an open search_path or is for everybody"


def _views(conn):
    query = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND "
        "(relkind = 'm' OR relkind = 'v' AND NOT coalesce(reloptions, '{}') && "
        "'{security_invoker=true,security_invoker=on}')"
    )
    yield from (f"the view {v} shows what its owner sees" for (v,) in conn.execute(query))


def add_row(conn: psycopg.Connection[Any], table: Table, tenant_id: UUID, row_id: UUID) -> None:
    """Insert a row of a tenant whose every id is `row_id`, with some value where one is needed."""
    values = {
        c.name: _value(c, tenant_id, row_id)
        for c in table.columns
        if c.name in {"tenant_id", "id"} or (not c.nullable and c.server_default is None)
    }
    compiled = insert(table).values(values).compile(dialect=_DIALECT)
    params: dict[str, Any] = dict(compiled.params)
    processors: Any = compiled._bind_processors
    for name, process in processors.items():
        params[name] = process(params[name])
    conn.execute(compiled.string.encode(), params)


def _value(column, tenant_id, row_id):
    if column.name == "tenant_id":
        return tenant_id
    kinds = {
        Uuid: row_id,
        Boolean: False,
        DateTime: datetime.now(UTC),
        Date: date(2025, 1, 1),
        LargeBinary: b"x",
        ARRAY: [],
        JSON: {},
        Text: f"x{tenant_id.hex}" if column.table.name == "tenants" else "x",
    }
    return next((v for kind, v in kinds.items() if isinstance(column.type, kind)), 1)


def two_tenants(conn: psycopg.Connection[Any]) -> tuple[UUID, UUID]:
    """Make a row in every table for each of two tenants; return their ids."""
    a, b = uuid4(), uuid4()
    for tenant_id in (a, b):
        ((row_id,),) = conn.execute("SELECT uuid7()").fetchall()
        for table in TENANT_TABLES:
            add_row(conn, table, tenant_id, row_id)
    return a, b


__all__ = ["TENANT_TABLES", "add_row", "problems", "two_tenants"]
