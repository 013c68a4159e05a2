"""The two transports under the client: the only code that knows whether it blocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import httpx


class Opened(Protocol):
    """An answer whose body is still coming."""

    @property
    def response(self) -> httpx.Response:
        """Status and headers; its body once `read` was called."""

    async def read(self) -> None:
        """Read the whole body."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""


class Wire(Protocol):
    """Sends one request. Failures are `httpx.TransportError`."""

    blocking: bool

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send, and read the whole answer."""

    def open(self, request: httpx.Request) -> AbstractAsyncContextManager[Opened]:
        """Send, and leave the body to be read piece by piece."""

    async def sleep(self, seconds: float) -> None:
        """Wait before asking again."""

    async def close(self) -> None:
        """Close all connections."""


class _BlockingOpened:
    def __init__(self, response: httpx.Response) -> None:
        self.response = response

    async def read(self) -> None:
        self.response.read()

    async def chunks(self) -> AsyncIterator[bytes]:
        for chunk in self.response.iter_bytes():
            yield chunk


class BlockingWire:
    """Blocks inside its coroutines, which never suspend: see `surface.finish`."""

    blocking = True

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send, and read the whole answer."""
        return self._client.send(request)

    @asynccontextmanager
    async def open(self, request: httpx.Request) -> AsyncIterator[Opened]:
        """Send, and leave the body to be read piece by piece."""
        response = self._client.send(request, stream=True)
        try:
            yield _BlockingOpened(response)
        finally:
            response.close()

    async def sleep(self, seconds: float) -> None:
        """Wait before asking again."""
        time.sleep(seconds)  # noqa: ASYNC251 - this wire blocks, by design

    async def close(self) -> None:
        """Close all connections."""
        self._client.close()


class _AsyncOpened:
    def __init__(self, response: httpx.Response) -> None:
        self.response = response

    async def read(self) -> None:
        await self.response.aread()

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self.response.aiter_bytes():
            yield chunk


class AsyncWire:
    """Awaits."""

    blocking = False

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Send, and read the whole answer."""
        return await self._client.send(request)

    @asynccontextmanager
    async def open(self, request: httpx.Request) -> AsyncIterator[Opened]:
        """Send, and leave the body to be read piece by piece."""
        response = await self._client.send(request, stream=True)
        try:
            yield _AsyncOpened(response)
        finally:
            await response.aclose()

    async def sleep(self, seconds: float) -> None:
        """Wait before asking again."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()
