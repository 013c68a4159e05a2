"""Shedding load: what this process cannot serve soon is refused at once, with a time to come back.

Requests that wait (for a slow database, say) are held in memory; a bound on how many there are is a
bound on that memory, and whoever is refused knows it in a millisecond. Streams and long polls hold
little and are counted apart. Health and metrics are always answered.
"""

from __future__ import annotations

import random
from typing import Final

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from harness_api.errors import problem
from harness_api.metrics import Metrics

log = structlog.get_logger()

_ALWAYS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_MAY_WAIT: Final = frozenset({"/v1/responses", "/mcp"})
"""What is posted here may be answered as long as a run takes."""
_LONG: Final = ("/export", "/stream", "/live")
"""Paths whose answers last, whatever the request says that it accepts."""


class LoadGuard:
    """Refuses requests beyond `max_requests` under way, and streams beyond `max_streams`."""

    def __init__(self, app: ASGIApp, max_requests: int, max_streams: int, metrics: Metrics) -> None:
        self._app = app
        self._limits = {"requests": max_requests, "streams": max_streams}
        self._held = {"requests": 0, "streams": 0}
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection."""
        if scope["type"] != "http" or scope["path"] in _ALWAYS:
            await self._app(scope, receive, send)
            return
        kind = "streams" if _waits_long(scope) else "requests"
        limit = self._limits[kind]
        if self._held[kind] >= limit:
            self._metrics.shed.labels(kind).inc()
            detail = (
                f"this server has {limit} {kind} under way, as many as it takes; "
                "try again after Retry-After"
            )
            # Spread the next attempts: those who are refused together must not come back together.
            headers = {"Retry-After": str(random.randint(1, 3))}
            answer = problem(
                503, "OVERLOADED", detail, rid=scope["state"]["request_id"],
                more={"limit": limit}, headers=headers,
            )  # fmt: skip
            await answer(scope, receive, send)
            return
        self._held[kind] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._held[kind] -= 1


def _waits_long(scope: Scope) -> bool:
    """Tell whether a request is an event stream or a long poll."""
    if scope["method"] != "GET":
        return scope["method"] == "POST" and scope["path"] in _MAY_WAIT
    if (
        scope["path"].endswith(_LONG)
        or b"wait=" in scope["query_string"]
        or b"stream=" in scope["query_string"]
    ):
        return True
    return any(k == b"accept" and b"text/event-stream" in v for k, v in scope["headers"])
