"""Reading the audit trail, for the API."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, literal_column, select

from harness_common.store.connection import Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import audit

COMMON: Final = "run.create"
"""The action of nearly every row; the index by action leaves it out (`schema.tenants`)."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which rows to list; None does not filter."""

    actor: str | None = None
    action: str | None = None
    target: str | None = None
    since: datetime | None = None
    until: datetime | None = None


async def list_audit(
    db: Database,
    tenant_id: UUID,
    wanted: AuditFilter | None = None,
    *,
    before: UUID | None,
    limit: int,
) -> list[Row]:
    """Return rows, newest first, of those older than `before`."""
    query = select(audit).where(audit.c.tenant_id == tenant_id, *_conditions(wanted))
    if before is not None:
        query = query.where(audit.c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(audit.c.id.desc()).limit(limit), db.timeout_s)


def _conditions(wanted: AuditFilter | None) -> list[ColumnElement[bool]]:
    if wanted is None:
        return []
    columns = {
        audit.c.actor: wanted.actor,
        audit.c.action: wanted.action,
        audit.c.target: wanted.target,
    }
    out = [column == value for column, value in columns.items() if value is not None]
    if wanted.action is not None and wanted.action != COMMON:
        out.append(audit.c.action != literal_column(f"'{COMMON}'"))  # lets the small index be used
    if wanted.since is not None:
        out.append(audit.c.at >= wanted.since)
    if wanted.until is not None:
        out.append(audit.c.at < wanted.until)
    return out
