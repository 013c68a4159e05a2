"""The list of runs: filters, search, and paging."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import id_of, page
from harness_api.routes.run_view import run_view
from harness_api.schemas.runs import RunQuery
from harness_common.store.run_reads import list_runs

router = new_pages("/console/runs")

CanRead = Annotated[Visit, requires_page("runs:read")]


@router.get("")
async def runs_page(services: Use, visit: CanRead, query: Annotated[RunQuery, Query()]) -> Response:
    """List runs, newest first."""
    rows = await list_runs(
        services.db,
        visit.caller.tenant_id,
        query.wanted(),
        before=id_of(query.cursor),
        limit=query.limit + 1,
    )
    runs, next_cursor = page(rows, query.limit, run_view, "id")
    return visit.page("runs.html", runs=runs, next_cursor=next_cursor, query=query)
