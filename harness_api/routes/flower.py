"""Flower at /flower, for people whose key may see the whole platform: its pages show the runs of
all tenants. Reading only.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from harness_api.auth import Caller, Requires
from harness_api.console.access import caller_of
from harness_api.console.guard import page_headers
from harness_api.console.routing import failed, to_login
from harness_api.deps import Use
from harness_api.flower import (
    MAX_FORM_BYTES,
    PREFIX,
    TABLE,
    Asked,
    body_back,
    headers_back,
)
from harness_common.core.errors import (
    Denied,
    HarnessError,
    Invalid,
    NotFound,
    Unauthenticated,
)
from harness_common.core.ids import encode

PERMISSION: Final = "platform:read"
_STATIC: Final = f"{PREFIX}/static/"
_HOST: Final = re.compile(r"[A-Za-z0-9.\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")
_INLINE: Final = "'sha256-A0YIP5A+DKoseGAUTHRoMPDkKPK5cKzfYH3mjcCKtj8='"
"""The one inline script of Flower's pages: how often the list of workers is read again."""
_POLICY: Final = (
    "default-src 'none'; script-src {at}static/ {inline}; style-src {at}static/ 'unsafe-inline'; "
    "img-src {at}static/ data:; connect-src {at}; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _Route(APIRoute):
    """Sends browsers to the login and shows them failures as pages; others get our usual errors."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler, as FastAPI wants it."""
        handle = super().get_route_handler()

        async def handle_any(request: Request) -> Response:
            try:
                return await handle(request)
            except HarnessError as error:
                if "text/html" not in request.headers.get("accept", ""):
                    raise
                if isinstance(error, Unauthenticated):
                    return to_login(request)
                return _page(request, error)

        return handle_any


def _page(request: Request, error: HarnessError) -> Response:
    """Show a failure as the console does."""
    nonce = request.scope["state"]["csp_nonce"] = secrets.token_urlsafe(18)
    answer = failed(request, error)
    for name, value in (*page_headers(nonce), (b"cache-control", b"no-store")):
        answer.headers[name.decode()] = value.decode()
    return answer


class _Passed(StreamingResponse):
    """An answer on its way; whatever becomes of the reader, the connection to Flower is let go."""

    def __init__(
        self,
        stack: AsyncExitStack,
        body: AsyncIterator[bytes],
        status: int,
        headers: dict[str, str],
    ) -> None:
        super().__init__(body, status, headers)
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        async with self._stack:
            await super().__call__(scope, receive, send)


router = APIRouter(route_class=_Route, include_in_schema=False)


async def _operator(request: Request) -> Caller:
    """Let in a session of the console, or a key, that may read the platform."""
    header = request.headers.get("authorization", "")
    scheme, _, key = header.partition(" ")
    if header:
        given = HTTPAuthorizationCredentials(scheme=scheme, credentials=key.strip())
        return await Requires(PERMISSION)(request, given if scheme.lower() == "bearer" else None)
    found = await caller_of(request)
    if found is None:
        raise Unauthenticated("log in at /console/login, or send an API key")
    caller = found[0]
    structlog.contextvars.bind_contextvars(
        tenant_id=encode("tenant", caller.tenant_id), key_id=caller.name
    )
    if PERMISSION not in caller.permissions:
        raise Denied(
            f"Flower shows the runs of every tenant, and this key (role {caller.role}) lacks the "
            f"permission {PERMISSION}; log in with an admin's key of the operator's tenant",
            permission=PERMISSION,
        )
    return caller


Operator = Annotated[Caller, Depends(_operator)]


@router.get(PREFIX)
async def flower_root(_: Operator) -> Response:
    """Lead to the first page."""
    return RedirectResponse(f"{PREFIX}/", 307)


@router.api_route(f"{PREFIX}/{{path:path}}", methods=["GET", "POST"])
async def flower_page(request: Request, services: Use, _: Operator) -> Response:
    """Fetch a page of Flower, or one of its files."""
    asked = await _asked(request)
    stack = AsyncExitStack()
    answer = await stack.enter_async_context(services.flower.ask(asked))  # `_Passed` leaves it
    headers = {**headers_back(answer), **_HEADERS}
    headers["Content-Security-Policy"] = policy(request)
    if not request.url.path.startswith(_STATIC):
        headers["cache-control"] = "no-store"

    return _Passed(stack, body_back(answer), answer.status_code, headers)


async def _asked(request: Request) -> Asked:
    """Take of a request what goes on to Flower."""
    path = request.url.path
    if any(part in {".", ".."} for part in path.split("/")):
        raise NotFound("no such page of Flower")
    if request.method == "POST" and path != TABLE:
        raise Denied("Flower is for reading here; act in the console, or with `harness`")
    body = await request.body() if request.method == "POST" else b""
    if len(body) > MAX_FORM_BYTES:
        raise Invalid("the form is too large", field="body", limit=MAX_FORM_BYTES)
    raw: bytes = request.scope.get("raw_path") or path.encode()
    return Asked(
        request.method, raw.partition(b"?")[0], request.scope["query_string"],
        request.headers, body,
    )  # fmt: skip


def policy(request: Request) -> str:
    """Return what Flower's pages may load: its own files, and nothing else of this host."""
    host = request.headers.get("host", "")
    at = f"{host}{PREFIX}/" if _HOST.fullmatch(host) else "'none'"
    return _POLICY.format(at=at, inline=_INLINE).replace("'none'static/", "'none'")
