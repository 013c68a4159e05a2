"""Which runs of a tenant a worker process works on now. Used by the API."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import func, select

from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.store.connection import Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import runs, workers


async def list_held_runs(db: Database, tenant_id: UUID, worker: UUID, *, limit: int) -> list[Row]:
    """Return runs that a worker process has claimed, the longest held first; raises `NotFound` for
    a process that is not known.
    """
    c = runs.c
    held_s = func.extract("epoch", func.clock_timestamp() - c.claimed_at)
    query = (
        select(
            *(c.id, c.agent_name, c.status, c.cancel_requested, c.step, c.next_kind, c.attempt),
            *(c.claimed_at, held_s.label("held_s")),
        )
        .where(c.tenant_id == tenant_id, c.claimed_by == worker, c.claim_id.is_not(None))
        .order_by(c.claimed_at)
        .limit(limit)
    )
    known = select(workers.c.incarnation).where(workers.c.incarnation == worker)
    async with db.tenant_transaction(tenant_id) as conn:
        if not await run_core(conn, known, db.timeout_s):
            shown = encode("worker", worker)
            raise NotFound(f"no worker {shown}", field="worker_id", value=shown)
        return await run_core(conn, query, db.timeout_s)
