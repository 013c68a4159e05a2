"""Shedding load: what this process cannot serve soon is refused at once, with a time to come back.

Requests that wait (for a slow database, say) are held in memory; a bound on how many there are is a
bound on that memory, and whoever is refused knows it in a millisecond. Streams and long polls hold
little and are counted apart, also by key: one must not take the places of all. Health and metrics
are always answered.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Final
from uuid import UUID

import structlog
from starlette.types import ASGIApp, Receive, Scope, Send

from harness_api.errors import problem
from harness_api.metrics import Metrics
from harness_common.core.errors import Limited

log = structlog.get_logger()

_ALWAYS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
_MAY_WAIT: Final = frozenset({"/v1/responses", "/mcp"})
"""What is posted here may be answered as long as a run takes."""
_PLACE: Final = "stream_place"
_LONG: Final = ("/export", "/stream", "/live")
"""Paths whose answers last, whatever the request says that it accepts."""


class Places:
    """How many streams each key has open, of those that it may have."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self.most = most
        self.held: Counter[UUID] = Counter()
        self.metrics = metrics


class StreamPlace:
    """The place of one stream, taken for a key once that is known, and given back when it ends."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._key: UUID | None = None

    def take(self, key_id: UUID) -> None:
        """Count the stream for a key; raises `Limited` when it has as many as it may."""
        places = self._places
        if self._key is not None:
            return
        if places.held[key_id] >= places.most:
            places.metrics.shed.labels("streams_of_key").inc()
            raise Limited(
                f"this key has {places.most} event streams and long polls open on this server, as "
                "many as one may; close some, or try again after Retry-After",
                retry_after_s=float(random.randint(1, 3)),
                code="TOO_MANY_STREAMS",
                limit=places.most,
            )
        places.held[key_id] += 1
        self._key = key_id

    def give_back(self) -> None:
        """Count the stream no longer."""
        if self._key is not None:
            self._places.held -= Counter([self._key])
            self._key = None


def take_place(scope: Scope, key_id: UUID) -> None:
    """Say whose request this is, which counts if it lasts; raises `Limited`. Called by whatever
    verifies a key.
    """
    place: StreamPlace | None = scope["state"].get(_PLACE)
    if place is not None:
        place.take(key_id)


class LoadGuard:
    """Refuses requests beyond `max_requests` under way, and streams beyond `max_streams`, of one
    key beyond `max_streams_per_key`.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_requests: int,
        max_streams: int,
        max_streams_per_key: int,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._limits = {"requests": max_requests, "streams": max_streams}
        self._held = {"requests": 0, "streams": 0}
        self._places = Places(max_streams_per_key, metrics)
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
        place = StreamPlace(self._places)
        if kind == "streams":
            scope["state"][_PLACE] = place
        try:
            await self._app(scope, receive, send)
        finally:
            self._held[kind] -= 1
            place.give_back()


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
