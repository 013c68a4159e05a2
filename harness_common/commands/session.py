"""What people ask of all runs of a session at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from harness_common.commands.control import Asked, cancel_run
from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.store.audit import Actor
from harness_common.store.connection import run_sql
from harness_common.store.db import Database

_ROUNDS: Final = 20
"""How often the session is looked at again for runs that were started meanwhile."""


@dataclass(frozen=True, slots=True)
class CancelledRun:
    """A run of the session that was asked to stop."""

    run_id: UUID
    asked: Asked


async def cancel_session(
    db: Database,
    tenant_id: UUID,
    session_id: UUID,
    *,
    by: str,
    reason: str = "",
    actor: Actor | None = None,
) -> list[CancelledRun]:
    """Ask every run of a session that is not over to stop, the newest first, so that none begins in
    the place of another. Safe to repeat. Raises `NotFound`.
    """
    done: list[CancelledRun] = []
    for _ in range(_ROUNDS):
        live = await _live_runs(db, tenant_id, session_id)
        if not live:
            break
        for run_id in live:
            asked = await cancel_run(db, tenant_id, run_id, by=by, reason=reason, actor=actor)
            done.append(CancelledRun(run_id, asked))
    return done


async def _live_runs(db: Database, tenant_id: UUID, session_id: UUID) -> list[UUID]:
    params = {"tenant_id": tenant_id, "session_id": session_id}
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "session_live_runs", params, db.timeout_s)
    if not rows:
        shown = encode("session", session_id)
        raise NotFound(f"no session {shown}", field="session_id", value=shown)
    return [row["run_id"] for row in rows if row["run_id"] is not None]
