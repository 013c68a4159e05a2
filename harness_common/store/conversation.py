"""A session as a conversation: the messages of its runs. Used by the API."""

from __future__ import annotations

from uuid import UUID

from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database


async def read_conversation(
    db: Database,
    tenant_id: UUID,
    session_id: UUID,
    *,
    before: tuple[UUID, int] | None,
    limit: int,
) -> list[Row]:
    """Return messages of a session's runs, the newest first, of those before (run, n).

    What a fork or retry took over from its source is left out: the source's messages are here.
    """
    params = {
        "tenant_id": tenant_id,
        "session_id": session_id,
        "before_run": before[0] if before else None,
        "before_n": before[1] if before else 0,
        "limit": limit,
    }
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_sql(conn, "session_messages", params, db.timeout_s)
