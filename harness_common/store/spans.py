"""The spans that belong to a run as a whole: the run itself, its wait in the queue, an attempt
whose process died. Each is sent once, by the process that ended it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from harness_common.core.ids import encode
from harness_common.core.run import RunState
from harness_common.store.rows import StoredRun
from harness_common.telemetry.traces import (
    Link,
    Place,
    Span,
    Value,
    accept_span,
    attempt_span,
    harmless,
    run_span,
    trace_of,
    traces,
)

_MS_BITS: Final = 80
"""A UUIDv7 begins with the time in ms; 80 bits come after it."""


def place_of(run: StoredRun) -> Place:
    """Name the span of a run."""
    return Place(trace_of(run.id, run.trace_id), run_span(run.id))


def about(run: StoredRun) -> dict[str, Value | None]:
    """Return the attributes that every span of a run has."""
    return {
        "harness.tenant_id": encode("tenant", run.tenant_id),
        "harness.run_id": encode("run", run.id),
        "gen_ai.conversation.id": encode("session", run.session_id),
        "gen_ai.agent.name": run.acting.name,
        "gen_ai.agent.version": str(run.acting.version),
    }


def tries(run: StoredRun) -> int:
    """Return which try at its step an attempt is: after faults, limits and deaths."""
    return run.attempt + run.state.failures + run.state.limited


@harmless
def begin_attempt(run: StoredRun, *, start_ns: int | None = None) -> Span | None:
    """Begin the span of the attempt that has claimed a run; a retry links to the claim before."""
    state = run.state
    span = traces.start(
        f"step {state.next_kind}",
        place_of(run),
        kind="consumer",
        span_id=attempt_span(run.id, run.fence),
        start_ns=start_ns,
        attributes=about(run),
    )
    if span is None:
        return None
    tried = tries(run)
    span.put(
        step=state.step + 1,
        step_kind=state.next_kind,
        attempt=tried,
        fence=run.fence,
        claim_id=str(run.claim_id),
        worker=str(run.claimed_by),
        failures=state.failures or None,
        deaths=state.deaths or None,
    )
    if run.fence > 1 and (tried > 1 or state.deaths):
        span.put(previous_fence=run.fence - 1)
        before = attempt_span(run.id, run.fence - 1)
        span.links.append(Link(Place(span.place.trace_id, before), "previous_attempt"))
    return span


@harmless
def send_lost(run: StoredRun, claimed_at: datetime | None, now: datetime, why: str) -> None:
    """Send the span of an attempt in the place of its process, which died with it."""
    begun = now if claimed_at is None else claimed_at
    span = begin_attempt(run, start_ns=_ns(begun))
    if span is not None:
        span.put(lost=True, why=why)
        span.fail("OWNER_LOST")
        traces.end(span, _ns(now))


@harmless
def send_queued(run: StoredRun, queued_at: datetime, now: datetime) -> None:
    """Send how long a run waited for admission."""
    span = traces.start("queued", place_of(run), start_ns=_ns(queued_at), attributes=about(run))
    if span is not None:
        span.put(queue=run.queue, priority=run.priority)
        traces.end(span, _ns(now))


@harmless
def send_run(run: StoredRun, state: RunState, now: datetime) -> None:
    """Send the span of a run that has ended."""
    above = accept_span(run.id) if run.parent_run_id is None else run_span(run.parent_run_id)
    trace_id = trace_of(run.id, run.trace_id)
    span = traces.start(
        f"invoke_agent {run.agent_name}",
        Place(trace_id, above),
        span_id=run_span(run.id),
        start_ns=(run.id.int >> _MS_BITS) * 1_000_000,
        attributes=about(run),
    )
    if span is None:
        return
    if run.parent_run_id is not None:
        span.put(parent_run_id=encode("run", run.parent_run_id))
        span.links.append(Link(Place(trace_id, above), "parent"))
    span.set("gen_ai.operation.name", "invoke_agent")
    span.set("gen_ai.agent.id", encode("agent", run.agent_id))
    span.set("gen_ai.usage.input_tokens", state.input_tokens)
    span.set("gen_ai.usage.output_tokens", state.output_tokens)
    span.put(
        status=str(state.status),
        stop_reason=state.stop_reason,
        steps=state.step,
        turns=state.turn,
        cost_usd=state.cost_usd,
    )
    if str(state.status) == "failed":
        error = state.error if isinstance(state.error, dict) else {}
        span.fail(str(error.get("code") or state.stop_reason or "FAILED"))
    traces.end(span, _ns(now))


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1e6) * 1_000
