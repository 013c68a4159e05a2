"""The run's state machine: `advance(state, inputs, now) -> Transition`. Pure: no I/O, no clock, no
randomness.

The table `TABLE` is keyed on (status, input type); a pair that is not in it is illegal.
`store.apply` is the only code that writes what a transition says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from harness_common.core import events as ev
from harness_common.core.budget import exceeded
from harness_common.core.errors import IllegalTransition
from harness_common.core.events import Event
from harness_common.core.inputs import (
    Admit,
    CancelRequested,
    Input,
    OwnerLost,
    Released,
    StepDone,
    StepFailed,
    TimerDue,
)
from harness_common.core.message import Json, Message, ToolResult, Trust
from harness_common.core.retry import retry_in_s
from harness_common.core.run import WAITING, RunState, Status, Transition
from harness_common.core.step import (
    MODEL,
    TOOLS,
    CallOutcome,
    ModelAnswered,
    StepCancelled,
    ToolsDone,
    ToolsUnknown,
    ToolsWaiting,
)
from harness_common.core.tool_call import CallStatus

MAX_DEATHS: Final = 5
"""Process deaths while holding a run before it is taken for poison."""


def advance(state: RunState, inputs: Sequence[Input], now: datetime) -> Transition:
    """Fold `inputs` into `state` and return the one transition to commit.

    Raises `IllegalTransition` for a pair that the table does not have. The version moves once, and
    only if status or step changed.
    """
    folded = Transition(state)
    for one in inputs:
        rule = TABLE.get((folded.state.status, type(one)))
        if rule is None:
            raise IllegalTransition(
                f"a run that is {folded.state.status} cannot take {type(one).__name__}",
                status=str(folded.state.status),
                input=type(one).__name__,
            )
        nxt = rule(folded.state, one, now)
        folded = Transition(
            nxt.state,
            folded.events + nxt.events,
            folded.messages + nxt.messages,
            folded.outcomes + nxt.outcomes,
            folded.proposed or nxt.proposed,
        )
    after = folded.state
    if after.status is not state.status or after.step != state.step:
        after = replace(after, version=state.version + 1)
    return replace(folded, state=after)


def _admit(state: RunState, _: Input, now: datetime) -> Transition:
    if state.not_before is not None and state.not_before > now:
        raise IllegalTransition(f"not before {state.not_before.isoformat()}")
    if state.limits.deadline is not None and now >= state.limits.deadline:
        return _give_up(state, "deadline_exceeded", now)
    name = ev.RUN_RESUMED if state.started else ev.RUN_STARTED
    nxt = replace(state, status=Status.RUNNING, started=True, not_before=None, claimed=False)
    return Transition(nxt, (Event(name, {"step": state.step, "kind": state.next_kind}),))


def _timer_due(state: RunState, _: Input, now: datetime) -> Transition:
    if state.not_before is not None and state.not_before > now:
        raise IllegalTransition(f"not before {state.not_before.isoformat()}")
    return Transition(replace(state, status=Status.QUEUED, not_before=None))


def _cancel(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, CancelRequested)
    asked = Event(ev.RUN_CANCEL_REQUESTED, {"by": one.by, "reason": one.reason})
    flagged = replace(state, cancel_requested=True)
    if state.status is Status.RUNNING and state.claimed:
        return Transition(flagged, () if state.cancel_requested else (asked,))
    done = _end(flagged, Status.CANCELLED, "cancelled", now)
    return Transition(done.state, (() if state.cancel_requested else (asked,)) + done.events)


def _owner_lost(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, OwnerLost)
    deaths = state.deaths + 1
    lost = Event(
        ev.RUN_RECOVERED, {"worker": one.worker, "why": one.why, "deaths": deaths}, state.step + 1
    )
    free = replace(state, claimed=False, deaths=deaths)
    if state.cancel_requested:
        return _then(lost, _end(free, Status.CANCELLED, "cancelled", now))
    if deaths >= MAX_DEATHS:
        error = {
            "category": "permanent",
            "code": "POISONED",
            "message": f"{deaths} worker processes died while they held step {state.step + 1}",
        }
        return _then(lost, _end(replace(free, error=error), Status.FAILED, "poisoned", now))
    return Transition(free, (lost,))


def _released(state: RunState, one: Input, now: datetime) -> Transition:
    free = replace(state, claimed=False)
    if state.cancel_requested:
        return _end(free, Status.CANCELLED, "cancelled", now)
    return Transition(free)


def _step_failed(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, StepFailed)
    failure = one.failure
    failures = state.failures + (failure.category == "transient")
    limited = state.limited + (failure.category == "limited")
    patience = limited if failure.category == "limited" else failures
    wait_s = retry_in_s(state.retry, failure, patience, one.jitter)
    number = state.step + 1
    events = (
        Event(ev.STEP_STARTED, {"kind": state.next_kind}, number, one.started_at),
        Event(
            ev.STEP_FAILED,
            {
                "kind": state.next_kind,
                "attempt": state.failures + state.limited + 1,
                "error": failure.to_json(),
                "failures": failures,
            },
            number,
        ),
    )
    memo = _without_permit(state.memo)
    if failure.permit is not None:
        memo["permit"] = failure.permit
    free = replace(state, claimed=False, failures=failures, limited=limited, memo=memo)
    if state.cancel_requested:
        return _then(events, _end(free, Status.CANCELLED, "cancelled", now))
    if wait_s is None:
        reason = "retries_exhausted" if failure.category == "transient" else "error"
        return _then(
            events, _end(replace(free, error=failure.to_json()), Status.FAILED, reason, now)
        )
    until = now + timedelta(seconds=wait_s)
    delayed = replace(free, status=Status.DELAYED, not_before=until)
    why = "rate_limited" if failure.category == "limited" else "retry"
    return _then(events, _delay(delayed, why, until, number, now, scope=failure.scope))


def _step_done(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, StepDone)
    number = state.step + 1
    started = Event(ev.STEP_STARTED, {"kind": state.next_kind}, number, one.started_at)
    free = replace(state, claimed=False)
    match one.result:
        case ModelAnswered():
            return _then(started, _model_answered(free, one.result, number, now))
        case ToolsDone(outcomes):
            return _then(started, _tools_done(free, outcomes, number, now))
        case ToolsWaiting(until, outcomes):
            waiting = replace(free, status=Status.DELAYED, not_before=until)
            if state.cancel_requested:
                return _then(started, _end(free, Status.CANCELLED, "cancelled", now, outcomes))
            return _then(started, _delay(waiting, "wait", until, number, now, outcomes))
        case ToolsUnknown(outcomes, unknown):
            return _then(started, _tools_unknown(free, outcomes, unknown, number, now))
        case StepCancelled(outcomes) if not state.cancel_requested:
            # A signal alone cancels nothing: only what Postgres holds does. The step is given back.
            return Transition(free, outcomes=outcomes)
        case StepCancelled(outcomes):
            return _then(started, _end(free, Status.CANCELLED, "cancelled", now, outcomes))
        case other:
            assert_never(other)


def _model_answered(
    state: RunState, answer: ModelAnswered, number: int, now: datetime
) -> Transition:
    uses = answer.message.tool_uses()
    nxt = replace(
        _step_counted(state),
        turn=state.turn + 1,
        messages=state.messages + 1,
        input_tokens=state.input_tokens + answer.input_tokens,
        output_tokens=state.output_tokens + answer.output_tokens,
        cost_usd=state.cost_usd + answer.cost_usd,
        next_kind=TOOLS if uses else MODEL,
    )
    recorded = (
        Event(ev.MODEL_ANSWERED, _answer_summary(answer, nxt.turn), number),
        Event(ev.STEP_COMPLETED, {"kind": MODEL}, number),
    )
    done = Transition(nxt, recorded, (answer.message,), proposed=bool(uses))
    if not uses and answer.finish != "pause":
        return _final_answer(done, answer, now)
    if state.cancel_requested:
        return _then(done, _end(nxt, Status.CANCELLED, "cancelled", now))
    if nxt.turn >= nxt.limits.max_turns:
        return _within_limits(done, now, "max_iterations_exceeded")
    return _within_limits(done, now)


def _within_limits(done: Transition, now: datetime, also: str | None = None) -> Transition:
    """Stop a run that has used up a cap (or `also`), after the step that did so is recorded."""
    nxt = done.state
    over = exceeded(nxt.limits, nxt.input_tokens + nxt.output_tokens, nxt.cost_usd) or also
    if over is None and nxt.limits.deadline is not None and now >= nxt.limits.deadline:
        over = "deadline_exceeded"
    return done if over is None else _then(done, _give_up(nxt, over, now))


def _final_answer(done: Transition, answer: ModelAnswered, now: datetime) -> Transition:
    """End a run whose model asked for nothing more. A cancel that came meanwhile wins: who asked
    for it was told so; the answer stays in the messages.
    """
    state = done.state
    if answer.finish == "refusal":
        error = {"category": "permanent", "code": "REFUSED", "message": answer.message.text()[:500]}
        return _then(done, _end(replace(state, error=error), Status.FAILED, "refusal", now))
    if state.cancel_requested:
        return _then(done, _end(state, Status.CANCELLED, "cancelled", now))
    reason = "length" if answer.finish == "length" else "final_answer"
    answered = replace(state, output=answer.message.text())
    return _then(done, _end(answered, Status.SUCCEEDED, reason, now))


def _tools_done(
    state: RunState, outcomes: tuple[CallOutcome, ...], number: int, now: datetime
) -> Transition:
    nxt = replace(
        _step_counted(state),
        messages=state.messages + 1,
        next_kind=MODEL,
        cost_usd=state.cost_usd + sum(o.cost_usd for o in outcomes),
    )
    events = (
        *(_outcome_event(o, number) for o in outcomes),
        Event(ev.STEP_COMPLETED, {"kind": TOOLS, "calls": len(outcomes)}, number),
    )
    done = Transition(nxt, events, (_results_message(outcomes),), outcomes)
    if state.cancel_requested:
        return _then(done, _end(nxt, Status.CANCELLED, "cancelled", now))
    return _within_limits(done, now)


def _tools_unknown(
    state: RunState,
    outcomes: tuple[CallOutcome, ...],
    unknown: tuple[int, ...],
    number: int,
    now: datetime,
) -> Transition:
    event = Event(
        ev.RUN_WAITING, {"for": "unknown_effect", "calls": [f"{number}.{i}" for i in unknown]}
    )
    if state.cancel_requested:
        return _end(state, Status.CANCELLED, "cancelled", now, outcomes)
    waiting = replace(state, status=Status.WAITING_APPROVAL, not_before=None)
    return Transition(waiting, (event,), outcomes=outcomes)


def _step_counted(state: RunState) -> RunState:
    memo = _without_permit(state.memo)
    return replace(state, step=state.step + 1, failures=0, limited=0, deaths=0, memo=memo)


def _without_permit(memo: Mapping[str, Json]) -> dict[str, Json]:
    """Return the memo without the slot for one model call (`core.throttle`): an attempt uses it
    up.
    """
    return {name: value for name, value in memo.items() if name != "permit"}


def _delay(
    state: RunState,
    why: str,
    until: datetime,
    number: int,
    now: datetime,
    outcomes: tuple[CallOutcome, ...] = (),
    scope: str = "",
) -> Transition:
    """Let the run wait until `until`, or fail it now if its own deadline comes first."""
    deadline = state.limits.deadline
    if deadline is not None and until > deadline:
        ended = _give_up(replace(state, not_before=None), "deadline_exceeded", now)
        return replace(ended, outcomes=outcomes)
    payload: dict[str, Json] = {"why": why, "until": until.isoformat()}
    if scope:
        payload["scope"] = scope
    event = Event(ev.RUN_DELAYED, payload, number)
    return Transition(state, (event,), outcomes=outcomes)


def _give_up(state: RunState, reason: str, now: datetime) -> Transition:
    error = {
        "category": "permanent",
        "code": reason.upper(),
        "message": f"stopped after {state.turn} model answers and {state.step} steps: {reason}",
    }
    return _end(replace(state, error=error), Status.FAILED, reason, now)


_END_EVENT: Final = {
    Status.SUCCEEDED: ev.RUN_COMPLETED,
    Status.FAILED: ev.RUN_FAILED,
    Status.CANCELLED: ev.RUN_CANCELLED,
}


def _end(
    state: RunState,
    status: Status,
    reason: str,
    now: datetime,
    outcomes: tuple[CallOutcome, ...] = (),
) -> Transition:
    """Write the one terminal state (INV4: no rule of the table starts from a terminal state)."""
    del now
    ended = replace(state, status=status, stop_reason=reason, not_before=None, claimed=False)
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


def _then(first: Transition | Event | tuple[Event, ...], second: Transition) -> Transition:
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
    )


def _answer_summary(answer: ModelAnswered, turn: int) -> dict[str, Json]:
    out: dict[str, Json] = {
        "turn": turn,
        "model": answer.model,
        "finish": answer.finish,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "cost_usd": answer.cost_usd if answer.priced else None,
        "tools": [u.name for u in answer.message.tool_uses()],
    }
    if answer.scripted:
        out["scripted"] = True
    if answer.first_token_ms is not None:
        out["first_token_ms"] = round(answer.first_token_ms, 1)
    return out


def _outcome_event(outcome: CallOutcome, number: int) -> Event:
    if outcome.error_type == "TIMEOUT":
        name = ev.TOOL_TIMEOUT
    elif outcome.status is CallStatus.SUCCEEDED:
        name = ev.TOOL_COMPLETED
    else:
        name = ev.TOOL_FAILED
    payload: dict[str, Json] = {
        "call": f"{number}.{outcome.index}",
        "tool": outcome.name,
        "status": str(outcome.status),
        "ms": round(outcome.duration_ms, 1),
        "result_bytes": len(outcome.content.encode()),
    }
    if outcome.error_type:
        payload["error_type"] = outcome.error_type
    if outcome.artifacts:
        payload["artifacts"] = list(outcome.artifacts)
    return Event(name, payload, number)


def _results_message(outcomes: tuple[CallOutcome, ...]) -> Message:
    """Answer every tool use in the order asked; one untrusted result taints the message."""
    trust: Trust = "untrusted" if any(o.trust == "untrusted" for o in outcomes) else "trusted"
    return Message(
        "tool",
        tuple(
            ToolResult(o.tool_use_id, o.content, o.status is not CallStatus.SUCCEEDED, o.error_type)
            for o in outcomes
        ),
        trust,
    )


Rule = Callable[[RunState, Input, datetime], Transition]

TABLE: Final[Mapping[tuple[Status, type[Input]], Rule]] = {
    (Status.QUEUED, Admit): _admit,
    (Status.QUEUED, CancelRequested): _cancel,
    (Status.RUNNING, StepDone): _step_done,
    (Status.RUNNING, StepFailed): _step_failed,
    (Status.RUNNING, OwnerLost): _owner_lost,
    (Status.RUNNING, Released): _released,
    (Status.RUNNING, CancelRequested): _cancel,
    (Status.DELAYED, TimerDue): _timer_due,
    **{(s, CancelRequested): _cancel for s in (Status.DELAYED, *sorted(WAITING))},
}
"""Every legal (status, input type); the rest is illegal. `tests/unit/test_run_table.py` lists all
pairs.
"""
