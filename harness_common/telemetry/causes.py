"""Who makes runs: the request or the firing under way, which learns of the runs that it made.

`commands.insert` names each new run here. Whoever opened the cause sends the span when its own
work is over: by then it is known whether the run is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from harness_common.telemetry.traces import (
    Kind,
    Link,
    Place,
    Span,
    Value,
    accept_span,
    harmless,
    run_span,
    trace_of,
    traces,
)


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that was made, and the run that it is a fork or retry of."""

    run_id: UUID
    trace_id: str
    source: Link | None = None


@dataclass(slots=True)
class Cause:
    """Something that may make runs."""

    start_ns: int
    parent: Place | None = None
    """The caller's span, if it named one."""
    made: list[NewRun] = field(default_factory=list)


@contextlib.contextmanager
def causing(name: str, attributes: Mapping[str, Value | None]) -> Iterator[None]:
    """Send a span for what is done in the block if that makes a run."""
    if not traces.on:
        yield
        return
    cause = Cause(traces.clock())
    token = CAUSE.set(cause)
    try:
        yield
    finally:
        CAUSE.reset(token)
    if cause.made:
        tell(cause, name, "internal", attributes, made=True)


CAUSE: ContextVar[Cause | None] = ContextVar("harness_cause", default=None)


def note_made(
    run_id: UUID, trace_id: str, source_id: UUID | None = None, source_trace: str = ""
) -> None:
    """Tell whoever makes runs now of a new one."""
    cause = CAUSE.get()
    if cause is None:
        return
    link = None
    if source_id is not None:
        link = Link(Place(trace_of(source_id, source_trace), run_span(source_id)), "forked_from")
    cause.made.append(NewRun(run_id, trace_id, link))


@harmless
def tell(
    cause: Cause, name: str, kind: Kind, attributes: Mapping[str, Value | None], *, made: bool
) -> Span | None:
    """Send the span of a cause; it belongs to the trace of the run that it made, if it `made` one.

    Returns it (ended), or None when it is not kept.
    """
    end_ns = traces.clock()
    runs = cause.made if made else []
    if runs:
        span = _accepting(runs[0], name, kind, cause)
    else:
        above = cause.parent or Place(uuid4().int, 0)
        span = traces.start(name, above, kind=kind, start_ns=cause.start_ns)
    if span is None:
        return None
    for key, value in attributes.items():
        span.set(key, value)
    traces.end(span, end_ns)
    for other in runs[1:]:
        more = _accepting(other, "accept run", "internal", cause)
        if more is not None:
            more.parent_id = span.place.span_id if more.place.trace_id == span.place.trace_id else 0
            traces.end(more, end_ns)
    return span


def _accepting(run: NewRun, name: str, kind: Kind, cause: Cause) -> Span | None:
    trace_id = trace_of(run.run_id, run.trace_id)
    parent = cause.parent
    same = parent is not None and parent.trace_id == trace_id
    above = parent if same and parent is not None else Place(trace_id, 0)
    span_id = accept_span(run.run_id)
    span = traces.start(name, above, kind=kind, span_id=span_id, start_ns=cause.start_ns)
    if span is not None:
        span.put(run_id=f"run_{run.run_id.hex}")
        span.links += [run.source] if run.source is not None else []
    return span
