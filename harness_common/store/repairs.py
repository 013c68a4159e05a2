"""Counting repairs of answers, and reading the counts by month."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from uuid import UUID

from harness_common.store import json_codec
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun


async def keep_repairs(
    db: Database, run: StoredRun, step: int, model: str, kinds: Mapping[str, int]
) -> None:
    """Count the repairs of one answer, once for a step however often it is attempted."""
    await db.fetch(
        "repairs_keep",
        {
            "tenant_id": run.tenant_id,
            "run_id": run.id,
            "step": step,
            "agent": run.agent_name,
            "model": model,
            "kinds": json_codec.dumps_text(dict(kinds)),
        },
    )


async def repairs_of_month(
    db: Database, tenant_id: UUID, month: str, agent: str | None = None
) -> list[Row]:
    """Return the repairs of a month (`2026-11`, in UTC) by agent, model and kind."""
    year, number = int(month[:4]), int(month[5:])
    first = datetime(year, number, 1, tzinfo=UTC)
    after = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    params = {"tenant_id": tenant_id, "from": first, "to": after, "agent": agent}
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_sql(conn, "repairs_stats", params, db.timeout_s)
