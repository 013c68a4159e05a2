"""Tools as data: a tenant's own, each change of which is a new version, and those of the workers.

Used by the API. The worker reads with statements of its own (`tools_current`, `tools_load`).
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from sqlalchemy import func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from harness_common.contracts.http_tool import ToolDefinition
from harness_common.core.errors import Conflict, Limited, NotFound
from harness_common.core.handoff import agent_of, is_agent_tool
from harness_common.core.host_rules import HostRules
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import egress_rules, tenant_tools, tool_versions

MAX_TOOLS: Final = 2_000
_NOW: Final = func.clock_timestamp()
_SHOWN: Final = (
    tenant_tools.c.tenant_id,
    tenant_tools.c.id,
    tenant_tools.c.name,
    tenant_tools.c.version.label("newest"),
    tenant_tools.c.kind,
    tenant_tools.c.disabled,
    tenant_tools.c.removed_at,
    tenant_tools.c.changed_at,
    tenant_tools.c.changed_by,
    tool_versions.c.version,
    tool_versions.c.definition,
    tool_versions.c.digest,
    tool_versions.c.created_at,
    tool_versions.c.created_by,
)


async def put_tool(
    db: Database, tenant_id: UUID, definition: ToolDefinition, actor: Actor
) -> tuple[Row, bool]:
    """Add a version of a tool, unless its newest one is the same and in place; return the version
    and whether it is new. Raises `Conflict` for a name that a worker's own tool has.

    A removed tool comes back with the next number: a number never means two things.
    """
    name, digest = definition.name, definition.digest()
    if any(row["name"] == name for row in await tools_at_workers(db)):
        raise Conflict(
            f"the workers have a tool {name!r} of their own, which goes before a tenant's; "
            "choose another name",
            code="TOOL_NAME_TAKEN",
            field="name",
            value=name,
        )
    async with db.tenant_transaction(tenant_id) as conn:
        head = await _locked(conn, tenant_id, name, definition.kind, actor, db.timeout_s)
        if head["version"] and head["removed_at"] is None:
            newest = await _read(conn, tenant_id, name, None, db.timeout_s)
            if newest["digest"] == digest:
                return newest, False
        version = head["version"] + 1
        added = insert(tool_versions).values(
            tenant_id=tenant_id,
            name=name,
            version=version,
            definition=definition.model_dump(mode="json"),
            digest=digest,
            created_by=actor.name,
        )
        await run_core(conn, added, db.timeout_s)
        await _change(
            conn, tenant_id, name, actor, db.timeout_s,
            version=version, kind=definition.kind, removed_at=None, disabled=False,
        )  # fmt: skip
        entry = Entry("tool.put", f"{name}@{version}", {"digest": digest})
        record(conn, tenant_id, actor, entry)
        return await _read(conn, tenant_id, name, version, db.timeout_s), True


async def _locked(
    conn: Connection, tenant_id: UUID, name: str, kind: str, actor: Actor, timeout_s: float
) -> Row:
    """Return the row of a tool, made if need be, locked until the transaction ends."""
    counted = select(func.count().label("n")).where(tenant_tools.c.tenant_id == tenant_id)
    if (await run_core(conn, counted, timeout_s))[0]["n"] >= MAX_TOOLS:
        known = select(tenant_tools.c.name).where(
            tenant_tools.c.tenant_id == tenant_id, tenant_tools.c.name == name
        )
        if not await run_core(conn, known, timeout_s):
            raise Limited(f"a tenant has {MAX_TOOLS} tools at most", code="TOO_MANY_TOOLS")
    values = {"tenant_id": tenant_id, "name": name, "kind": kind, "changed_by": actor.name}
    await run_core(conn, upsert(tenant_tools).values(values).on_conflict_do_nothing(), timeout_s)
    query = select(tenant_tools).where(
        tenant_tools.c.tenant_id == tenant_id, tenant_tools.c.name == name
    )
    return (await run_core(conn, query.with_for_update(), timeout_s))[0]


async def _change(
    conn: Connection, tenant_id: UUID, name: str, actor: Actor, timeout_s: float, **values: Any
) -> list[Row]:
    change = (
        update(tenant_tools)
        .where(tenant_tools.c.tenant_id == tenant_id, tenant_tools.c.name == name)
        .values(changed_at=_NOW, changed_by=actor.name, **values)
        .returning(tenant_tools.c.name)
    )
    return await run_core(conn, change, timeout_s)


async def _read(
    conn: Connection, tenant_id: UUID, name: str, version: int | None, timeout_s: float
) -> Row:
    wanted = tenant_tools.c.version if version is None else version
    query = (
        select(*_SHOWN)
        .join(
            tool_versions,
            (tool_versions.c.tenant_id == tenant_tools.c.tenant_id)
            & (tool_versions.c.name == tenant_tools.c.name),
        )
        .where(
            tenant_tools.c.tenant_id == tenant_id,
            tenant_tools.c.name == name,
            tool_versions.c.version == wanted,
        )
    )
    rows = await run_core(conn, query, timeout_s)
    if not rows:
        raise _no_tool(name, version)
    return rows[0]


async def read_tool(db: Database, tenant_id: UUID, name: str, version: int | None = None) -> Row:
    """Read one version of a tenant's tool, the one that counts by default; raises `NotFound`.

    A removed tool has its versions still, and none that counts.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(conn, tenant_id, name, version, db.timeout_s)
    if version is None and row["removed_at"] is not None:
        raise _no_tool(name, None)
    return row


async def list_tools(db: Database, tenant_id: UUID) -> list[Row]:
    """Return a tenant's tools by name, each with the version that counts."""
    query = (
        select(*_SHOWN)
        .join(
            tool_versions,
            (tool_versions.c.tenant_id == tenant_tools.c.tenant_id)
            & (tool_versions.c.name == tenant_tools.c.name)
            & (tool_versions.c.version == tenant_tools.c.version),
        )
        .where(tenant_tools.c.tenant_id == tenant_id, tenant_tools.c.removed_at.is_(None))
        .order_by(tenant_tools.c.name)
        .limit(MAX_TOOLS)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query, db.timeout_s)


async def list_tool_versions(
    db: Database, tenant_id: UUID, name: str, *, before: int | None, limit: int
) -> list[Row]:
    """Return the versions of a tool, newest first, also of a removed one; raises `NotFound`."""
    query = (
        select(*_SHOWN)
        .join(
            tool_versions,
            (tool_versions.c.tenant_id == tenant_tools.c.tenant_id)
            & (tool_versions.c.name == tenant_tools.c.name),
        )
        .where(tenant_tools.c.tenant_id == tenant_id, tenant_tools.c.name == name)
    )
    if before is not None:
        query = query.where(tool_versions.c.version < before)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(
            conn, query.order_by(tool_versions.c.version.desc()).limit(limit), db.timeout_s
        )
    if not rows and before is None:
        raise _no_tool(name, None)
    return rows


async def set_tool(
    db: Database, tenant_id: UUID, name: str, actor: Actor, *, disabled: bool
) -> Row:
    """Enable or disable a tool for the next step of every run. Safe to repeat."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(conn, tenant_id, name, None, db.timeout_s)
        if row["removed_at"] is not None:
            raise _no_tool(name, None)
        if row["disabled"] != disabled:
            await _change(conn, tenant_id, name, actor, db.timeout_s, disabled=disabled)
            entry = Entry("tool.disable" if disabled else "tool.enable", f"{name}@{row['version']}")
            record(conn, tenant_id, actor, entry)
        return await _read(conn, tenant_id, name, None, db.timeout_s)


async def remove_tool(db: Database, tenant_id: UUID, name: str, actor: Actor) -> None:
    """Take a tool away; its versions stay, for what the ledger names."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(conn, tenant_id, name, None, db.timeout_s)
        if row["removed_at"] is not None:
            raise _no_tool(name, None)
        await _change(conn, tenant_id, name, actor, db.timeout_s, removed_at=_NOW)
        entry = Entry("tool.remove", f"{name}@{row['version']}")
        record(conn, tenant_id, actor, entry)


async def tools_at_workers(db: Database) -> list[Row]:
    """Return the tools that live workers have. They are the operator's, so no tenant's data."""
    async with db.connection() as conn:
        return await run_sql(conn, "tools_at_workers", {}, db.timeout_s)


async def missing_tools(db: Database, tenant_id: UUID, names: tuple[str, ...]) -> list[str]:
    """Return those of `names` that neither a live worker nor the tenant has now, in order; those
    that name an agent, if there is none.
    """
    if not names:
        return []
    known = {row["name"] for row in await tools_at_workers(db)}
    async with db.tenant_transaction(tenant_id) as conn:
        params = {"tenant_id": tenant_id, "names": list(names)}
        rows = await run_sql(conn, "tools_current", params, db.timeout_s)
        agents = {name: agent_of(name) for name in names if is_agent_tool(name)}
        wanted = {"tenant_id": tenant_id, "names": sorted(set(agents.values()))}
        found = await run_sql(conn, "agents_newest", wanted, db.timeout_s) if agents else []
    known |= {row["name"] for row in rows if row["usable"]}
    there = {row["name"] for row in found}
    known |= {name for name, agent in agents.items() if agent in there}
    return [name for name in names if name not in known]


async def read_egress(db: Database, tenant_id: UUID) -> Row:
    """Read where the tenant's requests may go; without rules, anywhere public."""
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "egress_read", {"tenant_id": tenant_id}, db.timeout_s)
    return rows[0] if rows else {"allow": [], "deny": [], "changed_at": None, "changed_by": None}


async def set_egress(db: Database, tenant_id: UUID, rules: HostRules, actor: Actor) -> Row:
    """Replace where the tenant's requests may go."""
    values = {"allow": list(rules.allow), "deny": list(rules.deny), "changed_by": actor.name}
    put = upsert(egress_rules).values(tenant_id=tenant_id, **values)
    put = put.on_conflict_do_update(
        index_elements=["tenant_id"], set_={**values, "changed_at": _NOW}
    )
    detail = {"allow": list(rules.allow), "deny": list(rules.deny)}
    async with db.tenant_transaction(tenant_id) as conn:
        await run_core(conn, put, db.timeout_s)
        record(conn, tenant_id, actor, Entry("egress.set", "egress", detail))
        return (await run_sql(conn, "egress_read", {"tenant_id": tenant_id}, db.timeout_s))[0]


def _no_tool(name: str, version: int | None) -> NotFound:
    which = f" version {version}" if version is not None else ""
    return NotFound(
        f"the tenant has no tool {name!r}{which}", code="TOOL_NOT_FOUND", field="name", value=name
    )
