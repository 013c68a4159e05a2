"""The router that all pages are made with: failures become pages, a missing login leads to it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.responses import HTMLResponse, RedirectResponse, Response

from harness_api import errors
from harness_api.console.render import render
from harness_common.core.errors import HarnessError, Invalid, Unauthenticated


class PageRoute(APIRoute):
    """A route of the console."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler, as FastAPI wants it."""
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            try:
                return await handle(request)
            except Unauthenticated:
                return to_login(request)
            except HarnessError as error:
                return failed(request, error)
            except (RequestValidationError, ValidationError) as error:
                first = errors.describe(error.errors()[0])
                return failed(request, Invalid(first["message"], field=first["field"]))

        return handle_page


def new_pages(prefix: str) -> APIRouter:
    """Make the router of a page and what belongs to it."""
    return APIRouter(prefix=prefix, route_class=PageRoute, include_in_schema=False)


def to_login(request: Request) -> Response:
    """Lead a person without a session to the login, and back here after it."""
    if "text/event-stream" in request.headers.get("accept", ""):
        return Response(status_code=401)
    path = request.url.path
    if request.method == "GET" and request.url.query:
        path += f"?{request.url.query}"
    if request.method != "GET" or "hx-request" in request.headers:
        path = "/console"
    target = f"/console/login?next={quote(path, safe='/')}"
    if "hx-request" in request.headers:
        return Response(status_code=401, headers={"HX-Redirect": target})
    return RedirectResponse(target, 303)


def failed(request: Request, error: HarnessError) -> Response:
    """Show a failure: a notice where HTMX asked for a part, else a page."""
    status = errors.status_of(error)
    template = "_failed.html" if "hx-request" in request.headers else "failed.html"
    text = render(
        request,
        template,
        status=status,
        code=error.error_code,
        text=errors.public_text(error, status),
        request_id=errors.request_id(request),
    )
    headers = errors.headers_of(error, status)
    headers.pop("WWW-Authenticate", None)
    if "hx-request" in request.headers:
        headers |= {"HX-Retarget": "#notices", "HX-Reswap": "innerHTML"}
    return HTMLResponse(text, status, headers=headers)
