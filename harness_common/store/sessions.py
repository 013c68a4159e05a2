"""Sessions: conversations that own runs, from which their status is derived. Used by the API."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from sqlalchemy import Select, func, select

from harness_common.core.errors import Conflict, NotFound
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.core.run import Status
from harness_common.core.session import SessionStatus, session_status
from harness_common.store import json_codec
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql, run_together
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import runs, sessions


def status_of(row: Row) -> SessionStatus:
    """Derive the status of a session from a row that this module read."""
    return session_status(row["closed_at"] is not None, (Status(s) for s in row["statuses"] or ()))


async def create_session(
    db: Database,
    tenant_id: UUID,
    *,
    title: str | None,
    user_id: str | None,
    metadata: Mapping[str, Json],
    actor: Actor,
) -> Row:
    """Make an empty session."""
    params = {
        "tenant_id": tenant_id,
        "title": title,
        "user_id": user_id,
        "metadata": json_codec.dumps_text(dict(metadata)),
    }
    async with db.tenant_transaction(tenant_id) as conn:
        row = (await run_sql(conn, "session_insert", params, db.timeout_s))[0]
        entry = Entry("session.create", encode("session", row["id"]))
        record(conn, tenant_id, actor, entry)
        return row


async def read_session(db: Database, tenant_id: UUID, session_id: UUID) -> Row:
    """Read one session; raises `NotFound`."""
    query = _session_rows().where(sessions.c.tenant_id == tenant_id, sessions.c.id == session_id)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        raise _no_session(session_id)
    return rows[0]


async def list_sessions(
    db: Database, tenant_id: UUID, *, user_id: str | None, before: UUID | None, limit: int
) -> list[Row]:
    """Return sessions, newest first, of those older than `before`."""
    query = _session_rows().where(sessions.c.tenant_id == tenant_id)
    if user_id is not None:
        query = query.where(sessions.c.user_id == user_id)
    if before is not None:
        query = query.where(sessions.c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(sessions.c.id.desc()).limit(limit), db.timeout_s)


async def close_session(db: Database, tenant_id: UUID, session_id: UUID, actor: Actor) -> Row:
    """Close a session for good; safe to repeat. Raises `NotFound`, and `Conflict` while a run of
    it is going.
    """
    params = {"tenant_id": tenant_id, "id": session_id}
    async with db.tenant_transaction(tenant_id) as conn:
        hold = ("slots_hold", {"tenant_id": tenant_id})  # first: what follows sees who came before
        _, rows = await run_together(conn, [hold, ("session_read", params)], db.timeout_s)
        if not rows:
            raise _no_session(session_id)
        now = status_of(rows[0])
        if now is SessionStatus.CLOSED:
            return rows[0]
        if now in {SessionStatus.RUNNING, SessionStatus.REQUIRES_ACTION}:
            raise Conflict(
                "the session has a run that is still going; wait for it or cancel it",
                code="SESSION_BUSY",
                status=str(now),
            )
        await run_sql(conn, "session_close", params, db.timeout_s)
        entry = Entry("session.close", encode("session", session_id))
        record(conn, tenant_id, actor, entry)
    return await read_session(db, tenant_id, session_id)


def _session_rows() -> Select[tuple[object, ...]]:
    statuses = (
        select(func.array_agg(runs.c.status.distinct()))
        .where(runs.c.tenant_id == sessions.c.tenant_id, runs.c.session_id == sessions.c.id)
        .scalar_subquery()
    )
    return select(sessions, statuses.label("statuses"))


def _no_session(session_id: UUID) -> NotFound:
    shown = encode("session", session_id)
    return NotFound(f"no session {shown}", field="session_id", value=shown)
