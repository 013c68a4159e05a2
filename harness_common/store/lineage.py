"""Where a run comes from and what came of it: parents and children, sources and forks."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database
from harness_common.store.run_reads import no_run


@dataclass(frozen=True, slots=True)
class Lineage:
    """Rows of runs, each with its `relation` to the one that was asked for."""

    run: Row
    above: list[Row]
    """Nearest first."""
    below: list[Row]
    """Children in the order of their calls, then retries and forks, oldest first."""


async def read_lineage(db: Database, tenant_id: UUID, run_id: UUID) -> Lineage:
    """Read what is around a run; raises `NotFound`."""
    params = {"tenant_id": tenant_id, "run_id": run_id}
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "run_view", params, db.timeout_s)
        if not rows:
            raise no_run(run_id)
        above = await run_sql(conn, "lineage_up", params, db.timeout_s)
        below = await run_sql(conn, "lineage_down", params, db.timeout_s)
    return Lineage(rows[0], above, below)
