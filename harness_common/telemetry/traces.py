"""Traces: what happened to a run, as spans of OpenTelemetry. API, scheduler and workers call
`traces`.

Off unless a collector is named: then `traces.on` is False, no span is made, nothing is imported.

Every id that another process needs is derived, so that nothing is stored for traces but the run's
`trace_id`: the caller's own when the request brought one, else the run's id. The span of a run, of
its acceptance and of each attempt at a step have ids made of the run's id and the attempt's fence:
a worker, or the scheduler after the worker's death, names them without asking anybody.

No attribute holds what was asked or answered unless `telemetry.content` says so; every text is
cleaned of the secrets known to this process.
"""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from random import getrandbits
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar
from uuid import UUID

import structlog

from harness_common.core.errors import HarnessError
from harness_common.redaction import redactor

if TYPE_CHECKING:
    from harness_common.telemetry.export import SpanQueue

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")
Kind = Literal["internal", "server", "client", "producer", "consumer"]
Value = str | int | float | bool | tuple[str, ...]

MAX_TEXT_CHARS: Final = 16_384
"""The longest text of an attribute; content beyond it is cut."""
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
_TRACE_ID: Final = re.compile(r"[0-9a-f]{32}")
_RANDOM_BITS: Final = 56
"""The last bits of a trace id that W3C Trace Context 2 calls random; those of a UUIDv7 are."""


@dataclass(frozen=True, slots=True)
class Place:
    """A span that others may name: as their parent, or by a link."""

    trace_id: int
    span_id: int

    def traceparent(self) -> str:
        """Write it as the header of W3C Trace Context."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-01"


@dataclass(frozen=True, slots=True)
class Link:
    """Another span that this one has to do with, and how."""

    place: Place
    how: str


@dataclass(slots=True)
class Span:
    """One thing that takes time. `traces.end` sends it."""

    name: str
    place: Place
    parent_id: int = 0
    """0: the first of its trace."""
    kind: Kind = "internal"
    start_ns: int = 0
    end_ns: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    error: str | None = None
    """A code, never a message: those may quote anything."""
    begun_s: float = 0.0

    def put(self, **attributes: Value | None) -> None:
        """Set attributes that begin with `harness.`; None sets nothing."""
        for name, value in attributes.items():
            self.set(f"harness.{name}", value)

    def set(self, name: str, value: Value | None) -> None:
        """Set an attribute; None sets nothing, and an empty text neither."""
        if value is None or value in ("", ()):
            return
        if isinstance(value, str):
            value = clean(value)
        elif isinstance(value, tuple):
            value = tuple(clean(one) for one in value)
        self.attributes[name] = value

    def fail(self, code: str) -> None:
        """Mark it as failed."""
        self.error = clean(code)[:100]
        self.attributes["error.type"] = self.error


def clean(text: str) -> str:
    """Return a text without known secrets, and not too long."""
    return redactor.clean_all(text)[:MAX_TEXT_CHARS]


def code_of(error: BaseException) -> str:
    """Name an error without its words."""
    return error.error_code if isinstance(error, HarnessError) else type(error).__name__


def harmless(function: Callable[P, T | None]) -> Callable[P, T | None]:
    """Let no fault in a span become one of the work that it is about: None instead."""

    @functools.wraps(function)
    def guarded(*args: P.args, **more: P.kwargs) -> T | None:
        try:
            return function(*args, **more)
        except Exception:
            log.exception("span.failed", of=function.__name__)
            return None

    return guarded


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


def trace_of(run_id: UUID, trace_id: str) -> int:
    """Return the trace of a run: what is stored with it, else its own id."""
    stored = int(trace_id, 16) if _TRACE_ID.fullmatch(trace_id) else 0
    return stored or run_id.int


def run_span(run_id: UUID) -> int:
    """Return the id of the span of a whole run."""
    return run_id.int & 0xFFFF_FFFF_FFFF_FFFF  # the variant of a UUID is never 0


def accept_span(run_id: UUID) -> int:
    """Return the id of the span in which a run was accepted."""
    return _derived(run_id, b"accept")


def attempt_span(run_id: UUID, fence: int) -> int:
    """Return the id of the span of one attempt at a step: each claim raises the fence."""
    return _derived(run_id, b"%d" % fence)


def _derived(run_id: UUID, what: bytes) -> int:
    digest = blake2b(run_id.bytes + what, digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def place_in(traceparent: str) -> Place | None:
    """Read a `traceparent` header; None without a valid one."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    trace_id, span_id = int(match[1], 16), int(match[2], 16)
    return Place(trace_id, span_id) if trace_id and span_id else None


# ── the traces of this process ───────────────────────────────────────────────────────────────────

_CURRENT: ContextVar[Place | None] = ContextVar("harness_span", default=None)
_OUTSIDE: Final = contextlib.nullcontext()


class Traces:
    """Makes spans and hands them to the queue of this process."""

    def __init__(self) -> None:
        self.on = False
        self.content = False
        self.clock: Callable[[], int] = time.time_ns
        """Says what time it is, in ns; workers go by Postgres time."""
        self._queue: SpanQueue | None = None
        self._attach: Callable[[Place], Any] | None = None
        self._detach: Callable[[Any], None] | None = None
        self._most = 0

    def begin(
        self,
        queue: SpanQueue,
        *,
        ratio: float = 1.0,
        content: bool = False,
        attach: Callable[[Place], Any] | None = None,
        detach: Callable[[Any], None] | None = None,
    ) -> None:
        """Make spans from now on, of the part `ratio` of all traces."""
        self._queue, self._attach, self._detach = queue, attach, detach
        self.content, self._most = content, int(ratio * (1 << _RANDOM_BITS))
        self.on = True

    def stop(self, timeout_s: float = 2.0) -> None:
        """Send what is left, for at most `timeout_s`, and make no more."""
        queue, self.on = self._queue, False
        self._queue, self.clock, self.content = None, time.time_ns, False
        if queue is not None:
            queue.close(timeout_s)

    def takes(self, trace_id: int) -> bool:
        """Tell whether a trace is one of those that are kept: all processes say the same."""
        return self.on and (trace_id & ((1 << _RANDOM_BITS) - 1)) < self._most

    def start(
        self,
        name: str,
        parent: Place | None,
        *,
        kind: Kind = "internal",
        span_id: int | None = None,
        start_ns: int | None = None,
        attributes: Mapping[str, Value | None] | None = None,
    ) -> Span | None:
        """Begin a span below `parent`; None when traces are off or this one is not kept."""
        if parent is None or not self.takes(parent.trace_id):
            return None
        span = Span(
            clean(name),
            Place(parent.trace_id, span_id or getrandbits(64) or 1),
            parent.span_id,
            kind,
            self.clock() if start_ns is None else start_ns,
            begun_s=time.perf_counter(),
        )
        for key, value in (attributes or {}).items():
            span.set(key, value)
        return span

    def end(self, span: Span, end_ns: int | None = None) -> None:
        """End a span and send it soon; never waits, never raises."""
        if end_ns is None:
            end_ns = span.start_ns + int((time.perf_counter() - span.begun_s) * 1e9)
        span.end_ns = max(span.start_ns, end_ns)
        if self._queue is not None:
            self._queue.put(span)

    def inside(self, span: Span | None) -> AbstractContextManager[None]:
        """Make a span the parent of what is begun within the block, other libraries' spans too, and
        end it with the block. An exception becomes its code.
        """
        return _OUTSIDE if span is None else self._inside(span)

    @contextlib.contextmanager
    def _inside(self, span: Span) -> Iterator[None]:
        token = _CURRENT.set(span.place)
        outer = self._attach(span.place) if self._attach is not None else None
        try:
            yield
        except BaseException as error:
            if span.error is None:
                span.fail(code_of(error))
            raise
        finally:
            if self._detach is not None:
                self._detach(outer)
            _CURRENT.reset(token)
            self.end(span)

    @staticmethod
    def another(place: Place) -> Place:
        """Name a span of the same trace with an id of its own."""
        return Place(place.trace_id, getrandbits(64) or 1)

    @property
    def current(self) -> Place | None:
        """The span that what is begun now belongs to."""
        return _CURRENT.get()


traces: Final = Traces()
"""Those of this process."""
