"""Requests for erasure: what would go, asking for it, and how far it is. Used by the API; the
scheduler does it (`store.erase`).
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select

from harness_common.core.errors import Conflict, NotFound
from harness_common.core.ids import encode
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import erasures, tenants


async def preview_erasure(db: Database, tenant_id: UUID, user_id: str | None) -> Row:
    """Count what an erasure of a user, or with None of the whole tenant, would delete."""
    async with db.tenant_transaction(tenant_id) as conn:
        params = {"tenant_id": tenant_id, "user_id": user_id}
        return (await run_sql(conn, "erase_preview", params, db.timeout_s))[0]


async def require_erasable(db: Database, tenant_id: UUID) -> Row:
    """Return the row of a tenant; raises `NotFound`, and `Conflict` for one that runs the
    platform.
    """
    query = select(tenants).where(tenants.c.tenant_id == tenant_id)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        shown = encode("tenant", tenant_id)
        raise NotFound(f"no tenant {shown}", field="tenant_id", value=shown)
    if rows[0]["operator"]:
        raise Conflict(
            "this tenant runs the platform: it cannot be erased over its own API",
            code="OPERATOR_TENANT",
            field="tenant_id",
        )
    return rows[0]


async def ask_erasure(
    db: Database, asked_in: UUID, tenant_id: UUID, user_id: str | None, *, actor: Actor
) -> tuple[Row, bool]:
    """Ask for an erasure; return it and whether it is new. The same asked again while it goes on is
    the same request.
    """
    whole = user_id is None
    params = {
        "tenant_id": asked_in,
        "subject": "tenant" if whole else "user",
        "target_tenant": tenant_id,
        "user_id": user_id,
        "asked_by": actor.name,
        "request_id": actor.request_id,
    }
    async with db.tenant_transaction(asked_in) as conn:
        await run_sql(conn, "slots_hold", {"tenant_id": asked_in}, db.timeout_s)
        rows = await run_sql(conn, "erasure_twin", params, db.timeout_s)
        is_new = not rows
        if is_new:
            rows = await run_sql(conn, "erasure_insert", params, db.timeout_s)
            verb = "tenant.erase" if whole else "user.erase"
            detail = {"tenant": encode("tenant", tenant_id)} if whole else {}
            entry = Entry(verb, encode("erasure", rows[0]["id"]), detail)
            record(conn, asked_in, actor, entry)
    return await read_erasure(db, asked_in, rows[0]["id"]), is_new


async def read_erasure(db: Database, tenant_id: UUID, erasure_id: UUID) -> Row:
    """Read a request; raises `NotFound`."""
    c = erasures.c
    query = select(erasures).where(c.tenant_id == tenant_id, c.id == erasure_id)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        shown = encode("erasure", erasure_id)
        raise NotFound(f"no erasure {shown}", field="erasure_id", value=shown)
    return rows[0]


async def list_erasures(
    db: Database, tenant_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return requests, newest first."""
    c = erasures.c
    query = select(erasures).where(c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(c.id.desc()).limit(limit), db.timeout_s)
