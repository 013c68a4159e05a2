"""The server behind `/mcp`. `mount` loads this module when the first request comes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
from fastapi import FastAPI
from mcp.server.mcpserver import Context
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import ASGIApp, Scope

from harness_api.client import AsyncClient
from harness_api.mcp_face.tools import make_server


@asynccontextmanager
async def served(app: FastAPI, key_of: Callable[[Scope], str | None]) -> AsyncIterator[ASGIApp]:
    """Serve while the block lasts. Its tools call the app itself with the caller's key."""
    transport = httpx.ASGITransport(app)

    @asynccontextmanager
    async def connect(ctx: Context[Any, Any]) -> AsyncIterator[AsyncClient]:
        request = ctx.request_context.request
        key = key_of(request.scope) if request is not None else None
        async with AsyncClient("http://harness", key, transport=transport) as client:
            yield client

    server = make_server(connect)
    manager = StreamableHTTPSessionManager(server._lowlevel_server, stateless=True)
    async with manager.run():
        yield manager.handle_request
