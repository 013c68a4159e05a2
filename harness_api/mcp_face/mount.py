"""The MCP face at `/mcp` of the API: streamable HTTP, without sessions, so that any process of many
answers any request. A request without a valid API key is refused before the protocol sees it.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from fastapi import FastAPI
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from harness_api.auth import Keyring
from harness_api.errors import problem
from harness_api.load import take_place

PATH: Final = "/mcp"
_BEARER: Final = "bearer "
_SERVED_BY: Final = "harness_api.mcp_face.serve"


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
        face: _Face = self._app.state.mcp
        handle = await face.handler()
        await handle(scope, receive, send)


def _key_of(scope: Scope) -> str | None:
    text = next((v.decode("latin-1") for k, v in scope["headers"] if k == b"authorization"), "")
    return text[len(_BEARER) :].strip() if text.lower().startswith(_BEARER) else None


def add_route(app: FastAPI) -> None:
    """Put the face into an app, which opens it in its lifespan."""
    app.router.routes.append(Route(PATH, _Door(app), include_in_schema=False))


class _Face:
    """The protocol's server, loaded with the first request to it: it is a fifth of what an API
    process would load otherwise, and most have no use for it.
    """

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._handler: asyncio.Future[ASGIApp] | None = None
        self._task: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def handler(self) -> ASGIApp:
        """Return what answers requests; raises what kept it from being loaded, which the next
        request tries again.
        """
        if self._handler is None:
            self._handler = asyncio.get_running_loop().create_future()
            # Of its own context: what this request is called must not name the later ones.
            self._task = asyncio.create_task(
                self._serve(self._handler), name="mcp", context=contextvars.Context()
            )
        return await asyncio.shield(self._handler)

    async def _serve(self, ready: asyncio.Future[ASGIApp]) -> None:
        try:
            module = await asyncio.to_thread(importlib.import_module, _SERVED_BY)
            async with module.served(self._app, _key_of) as handler:
                ready.set_result(handler)
                await self._ended.wait()
        except Exception as error:
            if ready.done():
                raise
            self._handler = None
            ready.set_exception(error)

    async def close(self) -> None:
        """Stop serving."""
        self._ended.set()
        if self._task is not None:
            await self._task


@asynccontextmanager
async def opened(app: FastAPI) -> AsyncIterator[None]:
    """Serve the face while the block lasts."""
    face = app.state.mcp = _Face(app)
    try:
        yield
    finally:
        await face.close()
