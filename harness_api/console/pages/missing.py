"""Paths under /console that lead nowhere."""

from __future__ import annotations

from typing import Annotated

from fastapi.responses import HTMLResponse

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_common.core.errors import NotFound

router = new_pages("/console")


@router.get("/{path:path}")
async def missing(path: str, visit: Annotated[Visit, requires_page("runs:read")]) -> HTMLResponse:
    """Say so."""
    del visit
    raise NotFound(f"there is no page /console/{path[:200]}")
