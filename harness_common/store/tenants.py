"""What a tenant may see of itself and of the machinery: its limits, and the worker processes. Used
by the API.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import select

from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database, Row, run_sql
from harness_common.store.schema import workers


async def read_tenant(db: Database, tenant_id: UUID) -> Row:
    """Return name, limit, running and queued runs of a tenant."""
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "tenant_view", {"tenant_id": tenant_id}, db.timeout_s)
    if not rows:
        raise NotFound("no such tenant")
    return rows[0]


async def set_max_running(db: Database, tenant_id: UUID, max_running: int, actor: Actor) -> None:
    """Change how many runs of a tenant may run at once. Running ones go on; the scheduler grants
    more when asked.
    """
    params = {"tenant_id": tenant_id, "max_running": max_running}
    async with db.tenant_transaction(tenant_id) as conn:
        before = await run_sql(conn, "tenant_limit", params, db.timeout_s)
        entry = Entry(
            "tenant.set_limits",
            encode("tenant", tenant_id),
            {
                "max_running": {
                    "from": before[0]["max_running"] if before else None,
                    "to": max_running,
                }
            },
        )
        await record(conn, tenant_id, actor, entry, db.timeout_s)


async def list_workers(db: Database) -> list[Row]:
    """Return the known worker processes, newest first. They serve every tenant, so this is no
    tenant's data.
    """
    async with db.connection() as conn:
        query = select(workers).order_by(workers.c.started_at.desc())
        return await run_core(conn, query, db.timeout_s)
