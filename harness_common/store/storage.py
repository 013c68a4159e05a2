"""What is stored: by table, by week, by tenant, and what retention deletes next. Used by the API,
for whoever runs the platform.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from harness_common.settings import RetentionSettings
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database

_SAMPLE: Final = 20_000
"""Beyond so many runs the shares of tenants are reckoned from about so many."""
_SHARED: Final = {"runs": "runs", "events": "events", "checkpoints": "steps",
                  "messages": "messages"}  # fmt: skip
"""Tables whose size is divided, by which number of a tenant's."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What there is."""

    database_bytes: int
    garbage_blobs: int
    is_sample: bool
    tables: list[Row]
    partitions: list[Row]
    tenants: list[Row]


async def read_storage(db: Database, tenant_id: UUID, config: RetentionSettings) -> Storage:
    """Read it as the operator's tenant; another sees no tenants."""
    timeout_s = db.timeout_s
    async with db.tenant_transaction(tenant_id) as conn:
        (totals,) = await run_sql(conn, "storage_totals", {}, timeout_s)
        tables = await run_sql(conn, "storage_tables", {}, timeout_s)
        partitions = await run_sql(conn, "partitions_list", {}, timeout_s)
        percent = min(100.0, 100.0 * _SAMPLE / max(1, totals["runs"]))
        params = {"percent": percent} | config.days()
        tenants = await run_sql(conn, "storage_tenants", params, timeout_s)
    _share_out(tables, tenants)
    return Storage(
        totals["database_bytes"], totals["garbage_blobs"], percent < 100, tables, partitions,
        tenants,
    )  # fmt: skip


def _share_out(tables: list[Row], tenants: list[Row]) -> None:
    """Give each tenant its part of the tables, by its part of what is in them."""
    sizes = {row["table"]: row["bytes"] for row in tables}
    totals = {name: sum(t[name] for t in tenants) or 1 for name in _SHARED.values()}
    for tenant in tenants:
        tenant["bytes"] = sum(
            sizes.get(table, 0) * tenant[name] // totals[name] for table, name in _SHARED.items()
        )
