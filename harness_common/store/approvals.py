"""Approvals as stored: read for people, and the one write by which a person decides.

Called by the API (reads) and by `commands.approvals` (the write, under the run's row lock, under
which alone an approval ever changes). They are asked for, expired and closed by `commit.sql`, and
used by `call_intent.sql` and `approval_use.sql`.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from harness_common.core.approval import ApprovalStatus
from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.db import Database
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import seal_json_text


async def list_approvals(
    db: Database,
    tenant_id: UUID,
    *,
    status: ApprovalStatus | None = None,
    run_id: UUID | None = None,
    before: UUID | None = None,
    limit: int,
) -> list[Row]:
    """Return approvals with their runs, newest first, of those made before `before`."""
    params = {
        "tenant_id": tenant_id,
        "status": status and str(status),
        "run_id": run_id,
        "before": before,
        "limit": limit,
    }
    inbox = status is ApprovalStatus.PENDING and run_id is None
    async with db.tenant_transaction(tenant_id) as conn:
        statement = "approvals_inbox" if inbox else "approvals_list"
        return await run_sql(conn, statement, params, db.timeout_s)


async def read_approval(db: Database, tenant_id: UUID, approval_id: UUID) -> Row:
    """Read one approval with its run; raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        return await read_approval_in(conn, tenant_id, approval_id, db.timeout_s)


async def read_approval_in(
    conn: Connection, tenant_id: UUID, approval_id: UUID, timeout_s: float
) -> Row:
    """Do what `read_approval` does within the caller's transaction."""
    params = {"tenant_id": tenant_id, "id": approval_id}
    rows = await run_sql(conn, "approval_read", params, timeout_s)
    if not rows:
        shown = encode("approval", approval_id)
        raise NotFound(f"no approval {shown}", field="approval_id", value=shown)
    return rows[0]


@dataclass(frozen=True, slots=True)
class Said:
    """A decision as it is written."""

    status: ApprovalStatus
    by: str
    role: str
    reason: str
    digest: str
    """Of the arguments that hold from now on."""
    arguments: Json = None
    """The changed ones, else None."""


async def decide_in(conn: Connection, row: Row, said: Said, timeout_s: float) -> bool:
    """Write a decision about an approval as `row` shows it; False when it is no longer so, or its
    time is over.
    """
    changed = None if said.arguments is None else json_codec.dumps_text(said.arguments)
    key = await writing_key(conn, row["tenant_id"], timeout_s)
    params = {
        "tenant_id": row["tenant_id"],
        "id": row["id"],
        "status": str(said.status),
        "by": said.by,
        "role": said.role,
        "reason": said.reason,
        "shown_digest": row["digest"],
        "digest": said.digest,
        "arguments": None if changed is None else seal_json_text(key, changed),
    }
    return bool(await run_sql(conn, "approval_decide", params, timeout_s))
