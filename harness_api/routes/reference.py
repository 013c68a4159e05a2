"""The reference at /docs: a page without scripts, from the OpenAPI document of this very API."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from harness_api import reference
from harness_api.console.render import ENV

_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
router = APIRouter(include_in_schema=False)


@router.get("/")
async def get_home() -> Response:
    """Lead to the pages for people."""
    return RedirectResponse("/console", 303)


@router.get("/docs")
async def get_reference(request: Request) -> Response:
    """Show what the API can be asked."""
    state = request.app.state
    if not hasattr(state, "reference"):
        document = request.app.openapi()
        state.reference = ENV.get_template("reference.html").render(
            info=document["info"],
            subjects=reference.operations(request.app),
            schemas=reference.schemas(document),
        )
    return HTMLResponse(state.reference, headers=_HEADERS)
