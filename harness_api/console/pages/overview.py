"""What goes on at a glance, and finding a run from anywhere."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query, Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_common.core.errors import Invalid
from harness_common.core.ids import decode
from harness_common.store.tenants import read_tenant

router = new_pages("/console")

CanRead = Annotated[Visit, requires_page("runs:read")]
_PAGES = {"run": "runs", "session": "sessions", "approval": "approvals", "schedule": "schedules"}


@router.get("")
async def overview(services: Use, visit: CanRead) -> Response:
    """Show what goes on."""
    tenant = await read_tenant(services.db, visit.caller.tenant_id)
    return visit.page("overview.html", tenant=tenant)


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
