"""What goes on at a glance, and finding a run from anywhere.

Everything is read in bounded windows, and the page says which: its time does not grow with the
history.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final
from urllib.parse import urlencode

from fastapi import Query, Response

from harness_api.console import charts
from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Services, Use
from harness_common.core.errors import Invalid
from harness_common.core.ids import decode, encode
from harness_common.core.run import Status
from harness_common.store.connection import Row
from harness_common.store.overview import (
    ENDED,
    SLICES,
    WINDOW,
    Overview,
    read_overview,
    read_tenants_going,
)
from harness_common.store.tenants import list_workers
from harness_common.store.waiting import why_queued

router = new_pages("/console")

CanRead = Annotated[Visit, requires_page("runs:read")]
_PAGES: Final = {"run": "runs", "session": "sessions", "approval": "approvals"}
_HELD: Final = {None: "in line", "key": "behind their concurrency key", "session": "behind a run"}
_SHOWN: Final = 8


@router.get("")
async def overview(services: Use, visit: CanRead) -> Response:
    """Show what goes on."""
    found = await read_overview(services.db, visit.caller.tenant_id, datetime.now(UTC))
    values: dict[str, Any] = {
        "tenant": found.tenant,
        "chart": charts.throughput(found.ended, found.since, WINDOW, SLICES),
        "rates": _rates(found),
        "errors": _errors(found.ended),
        "looked_at": ENDED,
        "kinds": [row for row in found.steps if row["kind"]],
        "queue": await _queue(services, visit, found.queue),
        "waiting": [_waits(row) for row in found.waiting[:_SHOWN]],
        "waits": {row["status"]: row["of_status"] for row in found.waiting},
        "workers": await _workers(services, visit),
        "tenants": await _tenants(services, visit),
        "window_min": int(WINDOW.total_seconds() // 60),
    }
    if visit.htmx:
        return visit.part("_overview.html", **values)
    return visit.page("overview.html", **values)


@router.get("/find")
async def find(visit: CanRead, q: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Go to what an id names; else search the runs for the words."""
    text = q.strip()
    for kind, page in _PAGES.items():
        try:
            decode(kind, text)
        except Invalid:
            continue
        return visit.go(f"/console/{page}/{text}")
    return visit.go("/console/runs?" + urlencode({"q": text}))


def _rates(found: Overview) -> dict[str, Any]:
    """Sum up the window and the day."""
    ended = _by_status(found.ended)
    total = sum(ended.values())
    every = found.steps[0] if found.steps else {}
    steps = every.get("steps") or 0
    return {
        "ended": total,
        "per_min": total / (WINDOW.total_seconds() / 60),
        "failed": ended.get("failed", 0),
        "failed_share": ended.get("failed", 0) / total if total else None,
        "again_share": (every.get("again") or 0) / steps if steps else None,
        "taken": every.get("taken") or 0,
        "looked_at": every.get("runs") or 0,
        "steps": steps,
        "p50_ms": every.get("p50_ms"),
        "p99_ms": every.get("p99_ms"),
        "cost_today": sum(row["cost_today"] for row in found.ended),
        "tokens_today": sum(row["tokens_today"] for row in found.ended),
        "all_seen": sum(row["runs"] for row in found.ended) < ENDED,
    }


def _by_status(rows: Sequence[Row]) -> dict[str, int]:
    out: dict[str, int] = {}
    for row in rows:
        if row["slice"] >= 0:
            out[row["status"]] = out.get(row["status"], 0) + row["runs"]
    return out


def _errors(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Count why runs of the window failed, the most frequent first."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["status"] == Status.FAILED and row["slice"] >= 0:
            one = found.setdefault(row["code"], {"runs": 0, "last_at": row["last_at"]})
            one["runs"] += row["runs"]
            one["last_at"] = max(one["last_at"], row["last_at"])
    listed = [{"code": code, **one} for code, one in found.items()]
    return sorted(listed, key=lambda one: (-one["runs"], one["code"]))[:_SHOWN]


async def _queue(services: Services, visit: Visit, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Say of each part of the queue why its first run waits."""
    out = []
    for row in rows:
        why = await why_queued(services.db, visit.caller.tenant_id, row["id"], services.config)
        words = why["text"].rpartition(",")[0] if why else "about to start"
        out.append(
            {
                "runs": row["runs"],
                "held": _HELD.get(row["held_for"], row["held_for"]),
                "why": words,
                "id": encode("run", row["id"]),
                "since": row["queued_at"],
            }
        )
    return out


def _waits(row: Row) -> dict[str, Any]:
    return {**row, "id": encode("run", row["id"]), "status": str(Status(row["status"]))}


async def _workers(services: Services, visit: Visit) -> dict[str, int] | None:
    if not visit.may("workers:read"):
        return None
    alive = [w for w in await list_workers(services.db) if w["died_at"] is None]
    return {
        "alive": len(alive),
        "held": sum(w["held"] for w in alive),
        "places": sum(w["concurrency"] for w in alive),
    }


async def _tenants(services: Services, visit: Visit) -> list[Row]:
    if not visit.may("platform:read"):
        return []
    return await read_tenants_going(services.db, visit.caller.tenant_id)
