"""Why a queued run waits, its place in line, and since when. Read when somebody looks at a run.

The reasons are told in the order in which they bind: what holds the run back from its line, then
its queue, its tenant's limits, those over all tenants, and at last the others who are in line.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from harness_common.core.ids import encode
from harness_common.settings import Settings
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database

MOST: Final = 1_000
"""Up to here a place in line is exact."""


async def why_queued(
    db: Database, tenant_id: UUID, run_id: UUID, config: Settings
) -> dict[str, Any] | None:
    """Return what a queued run waits for (`for`), in words (`text`), its `place` (None beyond
    1,000) and `since`; None when it does not wait for admission.
    """
    params = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "all_running": config.scheduler.max_running,
        "lease_s": config.worker.lease_s,
    }
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "waiting", params, db.timeout_s)
    if not rows:
        return None
    row = rows[0]
    # Of a session the run under way counts as first: what is behind it is second.
    place = row["before"] + 1
    kind, words, more = _held(row) or _limited(row) or _in_line(row)
    return {
        "for": kind,
        "text": f"{words}, {ordinal(place)} in line",
        "place": place if place <= MOST else None,
        "since": row["queued_at"],
        **more,
    }


Reason = tuple[str, str, dict[str, Any]]


def _held(row: Row) -> Reason | None:
    if row["ahead_run_id"] is not None:
        ahead = encode("run", row["ahead_run_id"])
        words = f"the session's run {ahead} before it is {row['ahead_status']}"
        return "session", words, {"run": ahead}
    if row["held_for"] == "key":
        key, most = row["concurrency_key"], row["concurrency_max"]
        words = f"concurrency key {key} {row['key_running']} of {most} running"
        return "concurrency_key", words, {"key": key, "limit": most}
    return None


def _limited(row: Row) -> Reason | None:
    starts = not row["started"]
    if not row["served"]:
        return "no_worker", f"no worker for queue {row['queue']}", {"queue": row["queue"]}
    if row["running"] >= row["max_running"]:
        most = row["max_running"]
        return "tenant_limit", f"tenant limit {most} running", {"limit": most}
    if starts and row["starts_paid_ahead"] and row["starts_per_s"] is not None:
        rate = row["starts_per_s"]
        return "tenant_starts", f"tenant limit {rate:g} starts per second", {"limit": rate}
    if row["all_run"] >= row["all_running"]:
        most = row["all_running"]
        return "global_limit", f"global limit {most} running", {"limit": most}
    if starts and row["all_starts_paid_ahead"] and row["all_starts_per_s"] is not None:
        rate = row["all_starts_per_s"]
        return "global_starts", f"global limit {rate:g} starts per second", {"limit": rate}
    return None


def _in_line(row: Row) -> Reason:
    """Nothing forbids it: the workers are busy, or its turn is about to come."""
    if row["all_run"] >= row["places"]:
        words = f"the workers of queue {row['queue']} are busy ({row['places']} places)"
        return "workers_busy", words, {"queue": row["queue"]}
    return "turn", "about to start", {}


def ordinal(place: int) -> str:
    """Write 1st, 2nd, 3rd, 4th …, and 1000+ beyond what is counted."""
    if place > MOST:
        return f"{MOST}+"
    ends = {1: "st", 2: "nd", 3: "rd"}
    return f"{place}{'th' if 10 <= place % 100 <= 20 else ends.get(place % 10, 'th')}"
