"""The router that all routes are made with: JSON bodies are read by orjson."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from harness_common.core.message import Json


class _JsonRequest(Request):
    """Reads JSON by orjson: NaN, infinities and lone surrogates are refused."""

    async def json(self) -> Json:
        return orjson.loads(await self.body())


class JsonRoute(APIRoute):
    """A route whose body is read by orjson."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler, as FastAPI wants it."""
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return handle_json


def new_router(prefix: str, tag: str) -> APIRouter:
    """Make the router of one resource."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=JsonRoute)
