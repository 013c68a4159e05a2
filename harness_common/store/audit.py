"""The audit trail: one row for every change that somebody asked for, written in the transaction of
the change.

Called by commands and by the API's own writes (agents, sessions, keys, limits). Rows are only ever
added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, literal_column, select

from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.core_sql import run_core
from harness_common.store.db import Connection, Database, Row, run_sql
from harness_common.store.schema import audit

COMMON: Final = "run.create"
"""The action of nearly every row; the index by action leaves it out (`schema.tenants`)."""


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks, and in which request."""

    name: str
    """The external id of an API key, or the name of a process of ours."""
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What was done to what."""

    action: str
    """`noun.verb`, for example `run.cancel`."""
    target: str
    detail: Mapping[str, Json] = field(default_factory=dict)


async def record(
    conn: Connection, tenant_id: UUID, actor: Actor, entry: Entry, timeout_s: float
) -> None:
    """Add one row, as part of the transaction that is open on `conn`."""
    await run_sql(
        conn,
        "audit_insert",
        {
            "tenant_id": tenant_id,
            "actor": actor.name,
            "action": entry.action,
            "target": entry.target,
            "request_id": actor.request_id,
            "detail": json_codec.dumps_text(dict(entry.detail)),
        },
        timeout_s,
    )


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
