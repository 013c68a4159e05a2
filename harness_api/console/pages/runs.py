"""The list of runs: filters, search, saved views, paging."""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from fastapi import Response

from harness_api.console import run_filter
from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Services, Use
from harness_api.routes.runs import get_runs
from harness_common.core.errors import NotFound
from harness_common.store.agents import list_agent_names
from harness_common.store.console_views import delete_view, list_views, save_view

router = new_pages("/console/runs")

CanRead = Annotated[Visit, requires_page("runs:read")]
HOME: Final = "/console/runs"
QUICK: Final = (
    ("All", ()),
    ("Running", ("running", "cancelling")),
    ("Queued", ("queued",)),
    ("Needs a person", run_filter.PERSON),
    ("Waiting", ("delayed", "paused", "waiting_tool", "waiting_children")),
    ("Failed", ("failed",)),
    ("Succeeded", ("succeeded",)),
    ("Cancelled", ("cancelled",)),
)
"""Sets of statuses that are one press away."""


@router.get("")
async def runs_page(services: Use, visit: CanRead) -> Response:
    """List runs, newest first; a part of the page when HTMX refreshes it."""
    filters = run_filter.given(visit.request.query_params.multi_items())
    if run_filter.is_run_id(filters.get("q", "")):
        return visit.go(f"{HOME}/{filters['q']}")
    query = run_filter.query_of(filters)
    found = await get_runs(services, visit.caller, query)
    values: dict[str, Any] = {
        "runs": found.data,
        "next_cursor": found.next_cursor,
        "filters": run_filter.filled(filters),
        "filtered": bool(filters.keys() - {"cursor"}),
    }
    if visit.htmx:
        return visit.part("_runs.html", **values)
    return visit.page("runs.html", **values, **await _around(services, visit, filters))


async def _around(services: Services, visit: Visit, filters: dict[str, Any]) -> dict[str, Any]:
    db, caller = services.db, visit.caller
    views = await list_views(db, caller.tenant_id, "runs", caller.name)
    agents = await list_agent_names(db, caller.tenant_id, limit=200)
    kept = {k: v for k, v in filters.items() if k not in {"cursor", "status"}}
    return {
        "quick": [
            (title, urlencode({**kept, "status": statuses}, doseq=True), statuses)
            for title, statuses in QUICK
        ],
        "chosen": tuple(filters.get("status", ())),
        "agents": agents,
        "views": views,
        "saved": urlencode({k: v for k, v in filters.items() if k != "cursor"}, doseq=True),
    }


@router.post("/views")
async def save(services: Use, visit: CanRead) -> Response:
    """Save the filters under a name."""
    filters = run_filter.given(parse_qsl(visit.form.get("query", "")[:2_000]))
    run_filter.query_of(filters)  # raises for what the list would refuse
    query = urlencode({k: v for k, v in filters.items() if k != "cursor"}, doseq=True)
    await save_view(
        services.db,
        visit.caller.tenant_id,
        "runs",
        visit.form.get("name", ""),
        query,
        by=visit.caller.name,
        shared="shared" in visit.form,
    )
    return visit.go(f"{HOME}?{query}", "Saved.")


@router.post("/views/delete")
async def delete(services: Use, visit: CanRead) -> Response:
    """Delete a view of one's own."""
    try:
        view_id = UUID(hex=visit.form.get("id", ""))
    except ValueError:
        raise NotFound("no saved view has this id") from None
    name = await delete_view(services.db, visit.caller.tenant_id, view_id, by=visit.caller.name)
    return visit.go(HOME, f"Deleted the view {name}.")
