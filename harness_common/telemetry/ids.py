"""Which run a log line is about: the ids of the work under way, added to each line.

Whoever works on something sets `ABOUT` once; the ids are written out only when a line is logged.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from uuid import UUID

from structlog.typing import EventDict, WrappedLogger

from harness_common.core.ids import encode
from harness_common.telemetry.traces import trace_of, traces


@dataclass(frozen=True, slots=True)
class About:
    """The run and the attempt that is worked on."""

    tenant_id: UUID
    session_id: UUID
    run_id: UUID
    step: int
    attempt: int
    fence: int
    trace_id: str


ABOUT: ContextVar[About | None] = ContextVar("harness_about", default=None)


def add_ids(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    """Add the ids of the work under way; what the line says itself comes first."""
    del logger, method
    about = ABOUT.get()
    if about is None:
        return event
    event.setdefault("tenant_id", encode("tenant", about.tenant_id))
    event.setdefault("session_id", encode("session", about.session_id))
    run_id = event.setdefault("run_id", encode("run", about.run_id))
    if run_id != encode("run", about.run_id):
        return event  # about another run than the one under way
    event.setdefault("step", about.step)
    event.setdefault("attempt", about.attempt)
    event.setdefault("fence", about.fence)
    if traces.on:
        event.setdefault("trace_id", f"{trace_of(about.run_id, about.trace_id):032x}")
    return event
