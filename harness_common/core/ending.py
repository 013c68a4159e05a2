"""How a run ends, and the small joins of transitions that every rule uses."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from harness_common.core import events as ev
from harness_common.core.budget import Spent, exceeded
from harness_common.core.events import Event
from harness_common.core.message import Json
from harness_common.core.run import RunState, Status, Transition
from harness_common.core.step import CallOutcome
from harness_common.core.stop_reasons import StopReason
from harness_common.core.values import replace

_END_EVENT: Final = {
    Status.SUCCEEDED: ev.RUN_COMPLETED,
    Status.FAILED: ev.RUN_FAILED,
    Status.CANCELLED: ev.RUN_CANCELLED,
}


def end(
    state: RunState, status: Status, reason: str, outcomes: tuple[CallOutcome, ...] = ()
) -> Transition:
    """Write the one terminal state (INV4: no rule of the table starts from a terminal state)."""
    ended = replace(
        state,
        status=status,
        stop_reason=reason,
        not_before=None,
        claimed=False,
        waiting=None,
        turn_at=None,
        pause_requested=False,
    )
    payload: dict[str, Json] = {
        "status": str(status),
        "stop_reason": reason,
        "steps": ended.step,
        "input_tokens": ended.input_tokens,
        "output_tokens": ended.output_tokens,
        "cost_usd": ended.cost_usd,
    }
    if ended.error is not None:
        payload["error"] = ended.error
    return Transition(ended, (Event(_END_EVENT[status], payload),), outcomes=outcomes)


def cancelled(state: RunState, outcomes: tuple[CallOutcome, ...] = ()) -> Transition:
    """End a run that was asked to stop."""
    return end(state, Status.CANCELLED, StopReason.CANCELLED, outcomes)


def give_up(state: RunState, reason: str) -> Transition:
    """Fail a run that has used up a cap."""
    error = {
        "category": "permanent",
        "code": reason.upper(),
        "message": f"stopped after {state.turn} model answers and {state.step} steps: {reason}",
    }
    return end(replace(state, error=error), Status.FAILED, reason)


def charged(state: RunState, spent: Spent) -> RunState:
    """Add to what a run has used what no result of a step tells of."""
    return replace(
        state,
        input_tokens=state.input_tokens + spent.input_tokens,
        output_tokens=state.output_tokens + spent.output_tokens,
        cost_usd=state.cost_usd + spent.cost_usd,
    )


def past_deadline(state: RunState, now: datetime) -> bool:
    """Tell whether the run's wall clock is over."""
    return state.limits.deadline is not None and now >= state.limits.deadline


def within_limits(done: Transition, now: datetime, also: str | None = None) -> Transition:
    """Stop a run that has used up a cap (or `also`), after the step that did so is recorded."""
    nxt = done.state
    over = exceeded(nxt.limits, nxt.input_tokens + nxt.output_tokens, nxt.cost_usd) or also
    if over is None and past_deadline(nxt, now):
        over = StopReason.DEADLINE
    return done if over is None else then(done, give_up(nxt, over))


def then(first: Transition | Event | tuple[Event, ...], second: Transition) -> Transition:
    """Put the record of `first` before `second`; the state is `second`'s."""
    if isinstance(first, Event):
        first = (first,)
    if isinstance(first, tuple):
        return replace(second, events=first + second.events)
    return Transition(
        second.state,
        first.events + second.events,
        first.messages + second.messages,
        first.outcomes + second.outcomes,
        first.proposed or second.proposed,
        first.session_summary if second.session_summary is None else second.session_summary,
    )
