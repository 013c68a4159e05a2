"""MCP servers as people declare and accept them. Used by the API; workers have `mcp_tools`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import delete, func, insert, select, text, update

from harness_common.core.errors import Conflict, NotFound
from harness_common.core.mcp import ToolState, state_of
from harness_common.core.message import Json
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import mcp_servers, mcp_tools

MAX_SERVERS: Final = 200


@dataclass(frozen=True, slots=True)
class Declared:
    """What a tenant declares of a server."""

    target: Mapping[str, Json]
    effects: Mapping[str, str]
    timeout_s: float | None


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no MCP server {name!r}", field="server", value=name)


async def put_server(
    db: Database, tenant_id: UUID, name: str, declared: Declared, actor: Actor
) -> tuple[Row, bool]:
    """Declare a server, or declare it anew; returns it and whether it is new.

    What was accepted of its tools stays: another server behind the same name has to list the same.
    Raises `Conflict` beyond `MAX_SERVERS`.
    """
    mine = mcp_servers.c.tenant_id == tenant_id
    values = {
        "target": dict(declared.target),
        "effects": dict(declared.effects),
        "timeout_s": declared.timeout_s,
    }
    async with db.tenant_transaction(tenant_id) as conn:
        changed = await run_core(
            conn,
            update(mcp_servers)
            .where(mine, mcp_servers.c.name == name)
            .values(
                **values,
                generation=mcp_servers.c.generation + 1,
                updated_at=func.clock_timestamp(),
            )
            .returning(mcp_servers),
            db.timeout_s,
        )
        if changed:
            row, is_new = changed[0], False
        else:
            row, is_new = await _insert(conn, db, tenant_id, name, values, actor), True
        detail = {"target": _shown(declared.target), "effects": dict(declared.effects)}
        verb = "mcp_server.add" if is_new else "mcp_server.change"
        record(conn, tenant_id, actor, Entry(verb, name, detail))
    return row, is_new


async def _insert(
    conn: Connection,
    db: Database,
    tenant_id: UUID,
    name: str,
    values: Mapping[str, Any],
    actor: Actor,
) -> Row:
    mine = mcp_servers.c.tenant_id == tenant_id
    count = select(func.count().label("n")).select_from(mcp_servers).where(mine)
    ((found),) = await run_core(conn, count, db.timeout_s)
    if found["n"] >= MAX_SERVERS:
        raise Conflict(
            f"a tenant may have {MAX_SERVERS} MCP servers; remove one first",
            code="TOO_MANY_MCP_SERVERS",
            limit=MAX_SERVERS,
        )
    (row,) = await run_core(
        conn,
        insert(mcp_servers)
        .values(tenant_id=tenant_id, name=name, created_by=actor.name, **values)
        .returning(mcp_servers),
        db.timeout_s,
    )
    return row


def _shown(target: Mapping[str, Json]) -> dict[str, Json]:
    """Return a target for the audit trail: values of headers and environment by name only."""
    plain = {key: value for key, value in target.items() if key in {"url", "command"}}
    named = {key: sorted(target.get(key) or ()) for key in ("headers", "env")}
    return plain | {key: names for key, names in named.items() if names}


async def read_server(db: Database, tenant_id: UUID, name: str) -> Row:
    """Read a server; raises `NotFound`."""
    query = select(mcp_servers).where(
        mcp_servers.c.tenant_id == tenant_id, mcp_servers.c.name == name
    )
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        raise _missing(name)
    return rows[0]


async def list_servers(db: Database, tenant_id: UUID) -> list[Row]:
    """List a tenant's servers by name, each with its counts of tools by state."""
    query = (
        select(mcp_servers).where(mcp_servers.c.tenant_id == tenant_id).order_by(mcp_servers.c.name)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query, db.timeout_s)


async def list_tools(db: Database, tenant_id: UUID, server_id: UUID) -> list[Row]:
    """List a server's tools by name; each row has its `state`."""
    query = (
        select(mcp_tools)
        .where(mcp_tools.c.tenant_id == tenant_id, mcp_tools.c.server_id == server_id)
        .order_by(mcp_tools.c.name)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    return [
        row | {"state": state_of(row["accepted_hash"], row["seen_hash"], row["problem"])}
        for row in rows
    ]


async def remove_server(db: Database, tenant_id: UUID, name: str, actor: Actor) -> None:
    """Remove a server and its tools; raises `NotFound`."""
    statement = (
        delete(mcp_servers)
        .where(mcp_servers.c.tenant_id == tenant_id, mcp_servers.c.name == name)
        .returning(mcp_servers.c.id)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        if not await run_core(conn, statement, db.timeout_s):
            raise _missing(name)
        record(conn, tenant_id, actor, Entry("mcp_server.remove", name))


async def accept_tools(
    db: Database,
    tenant_id: UUID,
    name: str,
    *,
    tool: str | None,
    digest: str | None,
    actor: Actor,
) -> list[str]:
    """Accept what a server lists now: one tool or all of them; returns which were not before.

    A tool that is gone is forgotten. `digest` is that of what was looked at (of the tool, or of the
    whole list): `Conflict` when it is another by now. Raises `NotFound`.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        found = await run_core(
            conn,
            select(mcp_servers)
            .where(mcp_servers.c.tenant_id == tenant_id, mcp_servers.c.name == name)
            .with_for_update(),
            db.timeout_s,
        )
        if not found:
            raise _missing(name)
        (server,) = found
        where = [mcp_tools.c.tenant_id == tenant_id, mcp_tools.c.server_id == server["id"]]
        rows = await run_core(conn, select(mcp_tools).where(*where), db.timeout_s)
        chosen = [row for row in rows if tool is None or tool in {row["name"], row["exposed"]}]
        if tool is not None and not chosen:
            raise NotFound(f"{name} lists no tool {tool!r}", field="tool", value=tool)
        now = chosen[0]["seen_hash"] if tool is not None else server["seen_hash"]
        if digest is not None and digest != now:
            raise Conflict(
                "the server lists something else by now; look at it again "
                f"(`harness mcp tools {name}`)",
                code="MCP_LIST_MOVED",
            )
        changed = [row["name"] for row in chosen if _may_change(row)]
        await _accept(conn, db, where, changed, actor)
        detail: dict[str, Json] = {"tools": changed, "digest": now}
        record(conn, tenant_id, actor, Entry("mcp_server.accept", name, detail))
    return changed


def _may_change(row: Row) -> bool:
    state = state_of(row["accepted_hash"], row["seen_hash"], row["problem"])
    return state in {ToolState.NEW, ToolState.CHANGED, ToolState.GONE}


async def _accept(
    conn: Connection, db: Database, where: list[Any], names: list[str], actor: Actor
) -> None:
    those = [*where, mcp_tools.c.name.in_(names)]
    await run_core(
        conn, delete(mcp_tools).where(*those, mcp_tools.c.seen_hash.is_(None)), db.timeout_s
    )
    await run_core(
        conn,
        update(mcp_tools)
        .where(*those)
        .values(
            accepted=mcp_tools.c.seen,
            accepted_hash=mcp_tools.c.seen_hash,
            accepted_by=actor.name,
            accepted_at=func.clock_timestamp(),
        ),
        db.timeout_s,
    )


async def ask_check(db: Database, tenant_id: UUID, name: str) -> Row:
    """Wish that a worker looks at a server; returns it with the number of the wish."""
    statement = (
        update(mcp_servers)
        .where(mcp_servers.c.tenant_id == tenant_id, mcp_servers.c.name == name)
        .values(check_asked=text("check_asked + 1"))
        .returning(mcp_servers)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, statement, db.timeout_s)
    if not rows:
        raise _missing(name)
    return rows[0]
