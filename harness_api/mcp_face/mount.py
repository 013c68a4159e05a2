"""The MCP face at `/mcp` of the API: streamable HTTP, without sessions, so that any process of many
answers any request. A request without a valid API key is refused before the protocol sees it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx
from fastapi import FastAPI
from mcp.server.mcpserver import Context
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from harness_api.auth import Keyring
from harness_api.client import AsyncClient
from harness_api.errors import problem
from harness_api.load import take_place
from harness_api.mcp_face.tools import make_server

PATH: Final = "/mcp"
_BEARER: Final = "bearer "


class _Door:
    """Lets in requests with a key, once the face is open."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        keyring: Keyring = self._app.state.services.keyring
        key = _key_of(scope)
        found = await keyring.verify(key) if key is not None else None
        if found is None:
            refusal = problem(
                401,
                "UNAUTHENTICATED",
                "send an API key that is valid: `Authorization: Bearer hk_...`",
                rid=scope["state"]["request_id"],
                headers={"WWW-Authenticate": "Bearer"},
            )
            await refusal(scope, receive, send)
            return
        take_place(scope, found[0]["id"])
        handle: ASGIApp = self._app.state.mcp
        await handle(scope, receive, send)


def _key_of(scope: Scope) -> str | None:
    text = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"authorization"), "")
    return text[len(_BEARER) :].strip() if text.lower().startswith(_BEARER) else None


def add_route(app: FastAPI) -> None:
    """Put the face into an app, which opens it in its lifespan."""
    app.router.routes.append(Route(PATH, _Door(app), include_in_schema=False))


@asynccontextmanager
async def opened(app: FastAPI) -> AsyncIterator[None]:
    """Serve the face while the block lasts. Its tools call the app itself with the caller's key."""
    transport = httpx.ASGITransport(app)

    @asynccontextmanager
    async def connect(ctx: Context[Any, Any]) -> AsyncIterator[AsyncClient]:
        request = ctx.request_context.request
        key = _key_of(request.scope) if request is not None else None
        async with AsyncClient("http://harness", key, transport=transport) as client:
            yield client

    server = make_server(connect)
    manager = StreamableHTTPSessionManager(server._lowlevel_server, stateless=True)
    async with manager.run():
        app.state.mcp = manager.handle_request
        yield
