"""Streamable HTTP over a client from outside: the one that guards where requests may go.

The protocol's client speaks httpx2, the guarded one is of httpx; here one is the transport of the
other. A failure becomes the answer of its own request, so that it ends neither the session nor the
calls beside it, and says whether the request can have arrived.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final
from uuid import UUID

import httpx
import httpx2
from mcp import MCPError
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from harness_worker.egress.body import BadBody, read_body
from harness_worker.egress.transport import Refused
from harness_worker.mcp.faults import LOST, NOT_SENT, UNAUTHORIZED

ClientFactory = Callable[[UUID], Awaitable[httpx.AsyncClient]]
"""Makes the HTTP client of a tenant; closed by whoever asked for it."""
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_CONNECT_S: Final = 10.0
_REFUSED: Final = frozenset({401, 403})
_SERVER_ERROR: Final = 500
_OF_THE_BODY: Final = frozenset({b"content-encoding", b"content-length", b"transfer-encoding"})
_CODE: Final = -32_000


class Bridge(httpx2.AsyncBaseTransport):
    """Sends the requests of one connection through `client`."""

    def __init__(self, client: httpx.AsyncClient, max_bytes: int) -> None:
        """`max_bytes` is the longest answer that is taken, unless it comes as events."""
        self._client, self._max_bytes = client, max_bytes
        self._mark = secrets.token_hex(16)

    def fault_of(self, error: MCPError) -> str | None:
        """Return what happened, when an error is one that was made here."""
        data = error.data
        return (
            data.get("fault") if isinstance(data, dict) and data.get("by") == self._mark else None
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request and return its answer; events are still to be read."""
        headers = httpx.Headers(list(request.headers.raw))
        headers["accept-encoding"] = "identity"  # events are unpacked without a bound
        ours = self._client.build_request(
            request.method,
            str(request.url),
            headers=headers,
            content=await request.aread(),
            timeout=httpx.Timeout(None, connect=_CONNECT_S, pool=_CONNECT_S),
        )
        try:
            response = await self._client.send(ours, stream=True, follow_redirects=False)
        except (*_NEVER_SENT, Refused) as error:
            return self._failed(NOT_SENT, str(error))
        except httpx.HTTPError as error:
            return self._failed(LOST, str(error) or type(error).__name__)
        except Exception as error:  # noqa: BLE001 - a guard may refuse in its own words
            return self._failed(NOT_SENT, str(error) or type(error).__name__)
        if response.status_code in _REFUSED:
            await response.aclose()
            return self._failed(
                UNAUTHORIZED, f"HTTP {response.status_code}", response.status_code, response.headers
            )
        is_json = response.headers.get("content-type", "").startswith("application/json")
        if response.status_code >= _SERVER_ERROR and not is_json:
            await response.aclose()
            return self._failed(LOST, f"HTTP {response.status_code}")
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            return await self._read(response)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return self._failed(LOST, "its events are compressed, which was not asked for")
        return httpx2.Response(
            response.status_code, headers=list(response.headers.raw), stream=_Body(response)
        )

    async def _read(self, response: httpx.Response) -> httpx2.Response:
        """Return an answer with its body, as far as there is room for it."""
        try:
            body = await read_body(response, self._max_bytes)
        except (BadBody, httpx.HTTPError) as error:
            return self._failed(LOST, str(error) or type(error).__name__)
        finally:
            await response.aclose()
        if body.truncated and response.is_success:
            return self._failed(LOST, f"its answer is longer than {self._max_bytes} bytes")
        headers = [(k, v) for k, v in response.headers.raw if k.lower() not in _OF_THE_BODY]
        return httpx2.Response(response.status_code, headers=headers, content=body.data)

    def _failed(
        self, fault: str, why: str, status: int = 503, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        body = {
            "jsonrpc": "2.0",
            "id": 0,
            "error": {"code": _CODE, "message": why, "data": {"by": self._mark, "fault": fault}},
        }
        challenge = (headers or {}).get("www-authenticate")
        kept = {"www-authenticate": challenge} if challenge else {}
        return httpx2.Response(
            status,
            headers={"content-type": "application/json", **kept},
            content=json.dumps(body).encode(),
        )


class _Body(httpx2.AsyncByteStream):
    """The bytes of an answer as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_raw():
                yield chunk
        except httpx.HTTPError as error:
            raise httpx2.StreamError(str(error) or type(error).__name__) from error

    async def aclose(self) -> None:
        await self._response.aclose()


def protocol_client(
    bridge: Bridge, headers: Mapping[str, str], auth: httpx2.Auth | None = None
) -> httpx2.AsyncClient:
    """Return the protocol's own client over a bridge."""
    return httpx2.AsyncClient(
        transport=bridge,
        headers=dict(headers),
        auth=auth,
        timeout=httpx2.Timeout(None),
        trust_env=False,
    )


def http_transport(
    url: str, client: httpx2.AsyncClient, max_bytes: int
) -> AbstractAsyncContextManager[TransportStreams]:
    """Return the transport of one connection."""
    return streamable_http_client(url, http_client=client, max_sse_event_size=max_bytes)
