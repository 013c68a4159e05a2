"""Definitions of a tenant that are kept in versions by name: agents and skills are read alike."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Table, select
from sqlalchemy.dialects.postgresql import distinct_on

from harness_common.store.connection import Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database


async def list_newest(
    db: Database, table: Table, tenant_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return the newest version of each name, last changed first, of those made before the version
    `before`.
    """
    newest = (
        select(table)
        .ext(distinct_on(table.c.name))
        .where(table.c.tenant_id == tenant_id)
        .order_by(table.c.name, table.c.version.desc())
        .subquery()
    )
    query = select(newest)
    if before is not None:
        query = query.where(newest.c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(newest.c.id.desc()).limit(limit), db.timeout_s)


async def list_of_name(
    db: Database, table: Table, tenant_id: UUID, name: str, *, before: int | None, limit: int
) -> list[Row]:
    """Return the versions of a name, newest first; empty for an unknown one."""
    query = select(table).where(table.c.tenant_id == tenant_id, table.c.name == name)
    if before is not None:
        query = query.where(table.c.version < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(
            conn, query.order_by(table.c.version.desc()).limit(limit), db.timeout_s
        )


async def read_one(
    db: Database, table: Table, tenant_id: UUID, name: str, version: int | None
) -> Row | None:
    """Read one version of a name, the newest when `version` is None; None when there is none."""
    query = select(table).where(table.c.tenant_id == tenant_id, table.c.name == name)
    if version is not None:
        query = query.where(table.c.version == version)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query.order_by(table.c.version.desc()).limit(1), db.timeout_s)
    return rows[0] if rows else None
