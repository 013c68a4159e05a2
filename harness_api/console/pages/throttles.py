"""Throttles: which providers told us to slow down, for how long, and who waits for them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.routes.throttles import get_throttles

router = new_pages("/console/throttles")

CanRead = Annotated[Visit, requires_page("workers:read")]


@router.get("")
async def throttles_page(services: Use, visit: CanRead) -> Response:
    """List the throttles that hold now."""
    found = await get_throttles(services, visit.caller)
    return visit.page("throttles.html", throttles=found.data)
