"""What happens around every request, as plain ASGI: an id, a time, a log line, a last resort, and
guards before parsing.

`RequestLife` is the outer one. `BodyGuard` reads a body whole, so that its size, its kind, its
depth and NUL characters are judged before anything parses it.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness_api import request_spans
from harness_api.errors import internal_error, problem
from harness_api.metrics import Metrics

log = structlog.get_logger()

_CLIENT_ID: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_JSON_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NOT_A_BRACKET: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[^"\[\]{}]++', re.DOTALL)
"""Strings whole (an open one to the end, so that the time stays linear), and all else but
brackets.
"""
_FORMS: Final = ("/console/", "/flower/")
"""Where pages send forms."""
MAX_DEPTH: Final = 64
"""Nesting of a JSON body that is still parsed."""
BODY_S: Final = 60.0
"""How long a body may take to arrive: until then its request holds a place that others wait for."""


class ClientGone(Exception):
    """The client closed the connection before its request was read."""


class RequestLife:
    """Gives each request an id, measures and logs it, and answers when everything else failed."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rid = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = rid
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=rid)
        started, begun = time.perf_counter(), request_spans.begin(scope)
        status, first_byte_s = 0, 0.0

        async def send_with_id(message: Message) -> None:
            nonlocal status, first_byte_s
            if message["type"] == "http.response.start":
                status, first_byte_s = message["status"], time.perf_counter() - started
                message["headers"] = [*message["headers"], (b"request-id", rid.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientGone:
            return
        except Exception:
            log.exception("request.crashed", path=scope["path"], method=scope["method"])
            if status:  # too late for an answer: let the server cut the connection
                raise
            await internal_error(rid)(scope, receive, send_with_id)
        finally:
            total_s = time.perf_counter() - started
            self._finish(scope, status, first_byte_s, total_s, begun)

    def _finish(
        self,
        scope: Scope,
        status: int,
        first_byte_s: float,
        total_s: float,
        begun: request_spans.Begun | None,
    ) -> None:
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.seconds.labels(method, route).observe(first_byte_s)
        if begun is not None:
            request_spans.end(begun, scope, method, route, status)
        if route not in request_spans.QUIET:
            log.info(
                "request.served",
                method=method,
                route=route,
                status=status,
                ms=round(total_s * 1e3, 1),
            )


def _request_id(scope: Scope) -> str:
    given = next((v for k, v in scope["headers"] if k == b"request-id"), b"")
    return given.decode() if _CLIENT_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"


class BodyGuard:
    """Refuses bodies that are too large or too slow, of another kind than JSON, too deep, or hold
    NUL; and NUL in a URL.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, body_s: float = BODY_S) -> None:
        self._app = app
        self._max = max_body_bytes
        self._body_s = body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rid = scope["state"]["request_id"]
        if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
            detail = "the URL contains a NUL character (%00); remove it"
            await problem(422, "INVALID", detail, rid=rid, more={"field": "url"})(
                scope, receive, send
            )
            return
        headers = dict(scope["headers"])
        if b"content-length" not in headers and b"transfer-encoding" not in headers:
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._body_s):
                body = await self._read(headers, receive)
        except TimeoutError:
            detail = f"the body did not arrive within {self._body_s:g} s; send it again"
            close = {"Connection": "close"}
            answer = problem(408, "BODY_TOO_SLOW", detail, rid=rid, headers=close)
            await answer(scope, receive, send)
            return
        forms = scope["path"].startswith(_FORMS)
        refusal = self._judge(headers, body, forms=forms)
        if refusal is not None:
            status, code, detail, more = refusal
            close = {"Connection": "close"} if status == 413 else {}
            answer = problem(status, code, detail, rid=rid, more=more, headers=close)
            await answer(scope, receive, send)
            return
        given = False

        async def replay() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, send)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Return the body, or None as soon as it is known to be too large."""
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max:
            return None
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._max:
                return None
            if not message.get("more_body", False):
                return b"".join(parts)

    def _judge(
        self, headers: dict[bytes, bytes], body: bytes | None, *, forms: bool
    ) -> tuple[int, str, str, dict[str, Any]] | None:
        if body is None:
            detail = f"the body is larger than {self._max} bytes; send less"
            return 413, "BODY_TOO_LARGE", detail, {"field": "body", "limit": self._max}
        if not body:
            return None
        kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
        if forms and kind == b"application/x-www-form-urlencoded":
            return None
        if kind != b"application/json":
            detail = "send the body as JSON, with Content-Type: application/json"
            shown = kind.decode("latin-1")[:100]
            return 415, "UNSUPPORTED_MEDIA_TYPE", detail, {"field": "Content-Type", "value": shown}
        if b"\\u0000" in body and _JSON_NUL.search(body):
            detail = (
                "the body contains a NUL character (\\u0000), which cannot be stored; remove it"
            )
            return 422, "INVALID", detail, {"field": "body"}
        if too_deep(body, MAX_DEPTH):
            detail = f"the body is nested deeper than {MAX_DEPTH} levels; flatten it"
            return 422, "INVALID", detail, {"field": "body", "limit": MAX_DEPTH}
        return None


def too_deep(body: bytes, limit: int) -> bool:
    """Tell whether JSON text opens more than `limit` brackets at once, without parsing it."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for char in _NOT_A_BRACKET.sub(b"", body):
        if char in b"[{":
            depth += 1
            if depth > limit:
                return True
        elif char in b"]}":
            depth -= 1
    return False
