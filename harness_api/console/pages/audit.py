"""The audit trail: who changed what, filtered and in pages."""

from __future__ import annotations

from typing import Annotated

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.routes.tenant import get_audit
from harness_api.schemas.tenant import AuditQuery
from harness_common.core.ids import PREFIXES

router = new_pages("/console/audit")

CanRead = Annotated[Visit, requires_page("audit:read")]
_PAGES = {
    "run": "runs",
    "session": "sessions",
    "approval": "approvals",
    "webhook": "webhooks",
    "tenant": "tenants",
}


def page_of(target: str) -> str | None:
    """Return where the thing that a row is about is shown; None when it has no page."""
    for kind, page in _PAGES.items():
        if target.startswith(PREFIXES[kind]):
            return f"/console/{page}/{target}"
    return None


@router.get("")
async def audit_page(request: Request, services: Use, visit: CanRead) -> Response:
    """List who changed what, newest first."""
    given = {name: text for name, text in request.query_params.items() if text.strip()}
    try:
        query = AuditQuery(**given)
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error
    found = await get_audit(services, visit.caller, query)
    return visit.page(
        "audit.html",
        entries=[(entry, page_of(entry.target)) for entry in found.data],
        next_cursor=found.next_cursor,
        cursor=query.cursor,
        given=given,
    )
