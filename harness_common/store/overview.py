"""What a tenant has going, read in bounded windows: for the first page of the console.

Every statement reads a number of rows that does not grow with the history: the newest that ended
(`runs_finished_idx`), those that wait (`runs_waiting_idx`), the queued up to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database

WINDOW: Final = timedelta(hours=1)
ENDED: Final = 10_000
"""How many runs that ended are looked at; `overview_ended` has the same number."""
SLICES: Final = 12
"""Parts of the window, five minutes each."""


@dataclass(frozen=True, slots=True)
class Overview:
    """What was read, and of which time."""

    tenant: Row
    since: datetime
    ended: list[Row]
    """By slice (negative before the window), status and code of the failure: `runs`, `last_at`, and
    of today (UTC) `runs_today`, `cost_today` and `tokens_today`."""
    steps: list[Row]
    """By kind, the first of all kinds: `steps`, `again`, `p50_ms`, `p99_ms`; with the number of
    `runs` looked at and how often one was `taken` over."""
    queue: list[Row]
    """By what holds them: `runs`, and the `id` of the first."""
    waiting: list[Row]


async def read_overview(db: Database, tenant_id: UUID, now: datetime) -> Overview:
    """Read what a tenant has going; `now` ends the window."""
    since = now - WINDOW
    midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    mine = {"tenant_id": tenant_id}
    slice_s = WINDOW.total_seconds() / SLICES
    window = {**mine, "since": since, "slice_s": slice_s, "midnight": midnight}
    async with db.tenant_transaction(tenant_id) as conn:
        return Overview(
            tenant=(await run_sql(conn, "tenant_view", mine, db.timeout_s))[0],
            since=since,
            ended=await run_sql(conn, "overview_ended", window, db.timeout_s),
            steps=await run_sql(conn, "overview_steps", window, db.timeout_s),
            queue=await run_sql(conn, "overview_queue", mine, db.timeout_s),
            waiting=await run_sql(conn, "overview_waiting", mine, db.timeout_s),
        )


async def read_tenants_going(db: Database, tenant_id: UUID) -> list[Row]:
    """Return what each of the 50 busiest tenants has going; none unless the operator's asks."""
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_sql(conn, "overview_tenants", {}, db.timeout_s)
