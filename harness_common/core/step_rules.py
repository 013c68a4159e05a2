"""What follows from a step: the rules for what an owner brings back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, assert_never

from harness_common.core import events as ev
from harness_common.core.approval_rules import asked_events, needs_people, queued, undecided
from harness_common.core.budget import exceeded, spent_by
from harness_common.core.context_step import compacted, context_full, without_full
from harness_common.core.denials import count_denials, is_denied
from harness_common.core.ending import (
    cancelled,
    charged,
    end,
    give_up,
    past_deadline,
    then,
    within_limits,
)
from harness_common.core.events import Event
from harness_common.core.foreign_rules import foreign_stepped
from harness_common.core.graph import MODEL_CALL
from harness_common.core.graph_rules import nodes_done
from harness_common.core.guardrail import GuardrailBlocked, refused_from
from harness_common.core.guidance import NOTHING, Guidance, remembered
from harness_common.core.inputs import Input, StepDone, StepFailed
from harness_common.core.message import Json, Message, ToolResult, Trust
from harness_common.core.retry import retry_in_s
from harness_common.core.run import DECIDED, OF_ONE_STEP, PERMIT, RunState, Status, Transition
from harness_common.core.step import (
    MODEL,
    TOOLS,
    CallOutcome,
    Compacted,
    ContextFull,
    Failure,
    ForeignStepped,
    ModelAnswered,
    NodesDone,
    StepCancelled,
    ToolsDone,
    ToolsUnknown,
    ToolsWaiting,
    Wait,
)
from harness_common.core.stop_reasons import StopReason
from harness_common.core.taint import UNTRUSTED, memo_with
from harness_common.core.tool_call import CallStatus
from harness_common.core.values import replace


def step_failed(state: RunState, one: Input, now: datetime) -> Transition:
    """Try again later, or fail the run."""
    assert isinstance(one, StepFailed)
    failure = one.failure
    failures = state.failures + (failure.category == "transient")
    limited = state.limited + (failure.category == "limited")
    patience = limited if failure.category == "limited" else failures
    wait_s = retry_in_s(state.retry, failure, patience, one.jitter)
    number = state.step + 1
    recorded: dict[str, Json] = {
        "kind": state.next_kind,
        "attempt": state.failures + state.limited + 1,
        "error": failure.to_json(),
        "failures": failures,
    }
    if wait_s is not None:
        recorded["retry_in_s"] = round(wait_s, 3)
    events: tuple[Event, ...] = (
        Event(ev.STEP_STARTED, {"kind": state.next_kind}, number, one.started_at),
        Event(ev.STEP_FAILED, recorded, number),
    )
    free = replace(
        state, claimed=False, failures=failures, limited=limited, memo=_memo_after(state, one)
    )
    if isinstance(failure.detail, Mapping):
        if failure.code == GuardrailBlocked.code:
            events = (*events, Event(ev.GUARDRAIL_BLOCKED, failure.detail, number))
        free = charged(free, spent_by(failure.detail))
    ended = charged(free, one.kept)
    if state.cancel_requested:
        return then(events, cancelled(ended))
    if past_deadline(state, now):
        return then(events, give_up(ended, StopReason.DEADLINE))
    if wait_s is None:
        reason = _end_reason(failure)
        return then(events, end(replace(ended, error=failure.to_json()), Status.FAILED, reason))
    over = exceeded(free.limits, free.input_tokens + free.output_tokens, free.cost_usd)
    if over is not None:  # trying again would cost what is no longer there
        return then(events, give_up(ended, over))
    until = now + timedelta(seconds=wait_s)
    if state.limits.deadline is not None and until > state.limits.deadline:
        return then(events, give_up(ended, StopReason.DEADLINE))
    why = "rate_limited" if failure.category == "limited" else "retry"
    waiting = {"for": why, "code": failure.code, "message": failure.message}
    if failure.scope:
        waiting["scope"] = failure.scope
    return then(events, _delay(free, waiting, until, number))


_REASON_OF: Final = {
    "CHILD_FAILED": StopReason.CHILD_FAILED,
    GuardrailBlocked.code: StopReason.GUARDRAIL_BLOCKED,
    **{str(r).upper(): r for r in (StopReason.TOKEN_BUDGET, StopReason.COST_BUDGET)},
}


def _end_reason(failure: Failure) -> StopReason:
    if failure.category == "transient":
        return StopReason.RETRIES_EXHAUSTED
    return _REASON_OF.get(failure.code, StopReason.ERROR)


def _memo_after(state: RunState, one: StepFailed) -> dict[str, Json]:
    """Return the memo after a failed attempt.

    It has used up its slot for a model call, or was given one (`core.throttle`).
    """
    memo = {name: value for name, value in state.memo.items() if name != PERMIT}
    if one.failure.permit is not None:
        memo[PERMIT] = one.failure.permit
    return memo | refused_from(one.failure.code, one.failure.detail)


def step_done(state: RunState, one: Input, now: datetime) -> Transition:
    """Record a step and go on, wait or end."""
    assert isinstance(one, StepDone)
    number = state.step + 1
    started = Event(ev.STEP_STARTED, {"kind": state.next_kind}, number, one.started_at)
    free = replace(state, claimed=False)
    match one.result:
        case ModelAnswered():
            done = _model_answered(free, one.result, number, now)
        case ToolsDone(outcomes, guidance):
            done = _tools_done(free, outcomes, number, now, guidance)
        case ContextFull() | Compacted() | NodesDone() | ForeignStepped():
            done = _others_done(free, one.result, number, now)
        case ToolsWaiting():
            done = _tools_waiting(charged(free, one.result.spent), one.result, number)
        case ToolsUnknown(outcomes, unknown, spent):
            done = _tools_unknown(charged(free, spent), outcomes, unknown, number)
        case StepCancelled(outcomes, spent) if not state.cancel_requested:
            # A signal alone cancels nothing: only what Postgres holds does. The step is given back.
            return Transition(charged(free, spent), outcomes=outcomes)
        case StepCancelled(outcomes, spent, kept):
            done = cancelled(charged(free, spent + kept), outcomes)
        case other:
            assert_never(other)
    if one.turn_over and done.state.status is Status.RUNNING:
        queued = replace(done.state, status=Status.QUEUED, turn_at=None)
        done = then(done, Transition(queued, (Event(ev.RUN_YIELDED, {"after_step": number}),)))
    return then(started, done)


_Other = ContextFull | Compacted | NodesDone | ForeignStepped


def _others_done(state: RunState, result: _Other, number: int, now: datetime) -> Transition:
    """Record a step of a kind whose rules are its own."""
    if isinstance(result, ContextFull):
        return context_full(state, result, number)
    counted = _step_counted(state)
    if isinstance(result, Compacted):
        return compacted(counted, result, number, now)
    outcomes = result.outcomes
    if isinstance(result, ForeignStepped):
        calls = tuple(_outcome_event(o, number) for o in outcomes)
        return foreign_stepped(counted, result, calls, _touched(outcomes), now)
    counted = replace(counted, memo=memo_with(counted.memo, _touched(outcomes)))
    told = tuple(_outcome_event(o, number) for o in outcomes if o.name != MODEL_CALL)
    return nodes_done(counted, result, told, number, now)


def _model_answered(
    state: RunState, answer: ModelAnswered, number: int, now: datetime
) -> Transition:
    uses, said = answer.message.tool_uses(), answer.guidance
    nxt = replace(
        _step_counted(state),
        turn=state.turn + 1,
        messages=state.messages + len(answer.notes) + 1 + len(said.messages),
        input_tokens=state.input_tokens + answer.input_tokens,
        output_tokens=state.output_tokens + answer.output_tokens,
        cost_usd=state.cost_usd + answer.cost_usd,
        next_kind=said.next_kind or (TOOLS if uses else MODEL),
    )
    nxt = replace(nxt, memo=remembered(without_full(nxt.memo), said))
    recorded = (
        Event(ev.MODEL_ANSWERED, _answer_summary(answer, nxt.turn), number),
        *said.events,
        Event(ev.STEP_COMPLETED, {"kind": MODEL}, number),
    )
    messages = (*answer.notes, answer.message, *said.messages)
    done = Transition(
        nxt, recorded, messages, proposed=bool(uses), session_summary=answer.session_summary
    )
    if said.stop is None and _is_final(nxt, answer, now):
        return _final_answer(done, answer)
    if state.cancel_requested:
        return then(done, cancelled(nxt))
    if said.stop is not None:
        return _stopped(done, said)
    if nxt.turn >= nxt.limits.max_turns:
        return within_limits(done, now, StopReason.MAX_ITERATIONS)
    return within_limits(done, now)


def _is_final(state: RunState, answer: ModelAnswered, now: datetime) -> bool:
    """Tell whether the run ends with this answer."""
    if answer.message.has_tool_uses() or answer.finish == "pause":
        return False
    if answer.finish == "refusal":
        return True
    return not (answer.guidance.again or answer.guidance.next_kind or _goes_on(state, now))


def _stopped(done: Transition, said: Guidance) -> Transition:
    """End a run that a guard stopped: its error says why, unless it has reached its goal."""
    assert said.stop is not None
    if said.succeeds:
        reached = replace(done.state, output=said.output)
        return then(done, end(reached, Status.SUCCEEDED, said.stop))
    if said.error is None:
        return then(done, give_up(done.state, said.stop))
    return then(done, end(replace(done.state, error=dict(said.error)), Status.FAILED, said.stop))


def _goes_on(state: RunState, now: datetime) -> bool:
    """Tell whether a message for the model is still to be answered, and may be: a run whose caps
    are used up ends with the answer it has.
    """
    if not state.memo.get("steer") or state.turn >= state.limits.max_turns:
        return False
    used = exceeded(state.limits, state.input_tokens + state.output_tokens, state.cost_usd)
    return used is None and not past_deadline(state, now)


def _final_answer(done: Transition, answer: ModelAnswered) -> Transition:
    """End a run whose model asked for nothing more. A cancel that came meanwhile wins: who asked
    for it was told so; the answer stays in the messages.
    """
    state = done.state
    if answer.finish == "refusal":
        error = {"category": "permanent", "code": "REFUSED", "message": answer.message.text()[:500]}
        return then(done, end(replace(state, error=error), Status.FAILED, StopReason.REFUSAL))
    if state.cancel_requested:
        return then(done, cancelled(state))
    reason = StopReason.LENGTH if answer.finish == "length" else StopReason.FINAL_ANSWER
    said = answer.guidance.output
    answered = replace(state, output=answer.message.text() if said is None else said)
    return then(done, end(answered, Status.SUCCEEDED, reason))


def _tools_done(
    state: RunState,
    outcomes: tuple[CallOutcome, ...],
    number: int,
    now: datetime,
    said: Guidance = NOTHING,
) -> Transition:
    counted = _step_counted(state)
    denials = count_denials(counted.memo, outcomes, number)
    outcomes = denials.outcomes
    nxt = replace(
        counted,
        memo=remembered(memo_with(denials.memo, _touched(outcomes)), said),
        messages=state.messages + 1 + len(said.messages),
        next_kind=said.next_kind or MODEL,
        cost_usd=state.cost_usd + sum(o.cost_usd for o in outcomes),
        input_tokens=state.input_tokens + sum(o.input_tokens for o in outcomes),
        output_tokens=state.output_tokens + sum(o.output_tokens for o in outcomes),
    )
    events = (
        *(_outcome_event(o, number) for o in outcomes),
        *denials.events,
        *said.events,
        Event(ev.STEP_COMPLETED, {"kind": TOOLS, "calls": len(outcomes)}, number),
    )
    done = Transition(nxt, events, (_results_message(outcomes), *said.messages), outcomes)
    if state.cancel_requested:
        return then(done, cancelled(nxt))
    if said.stop is not None and denials.over is None:
        return _stopped(done, said)
    return within_limits(done, now, denials.over)


def _touched(outcomes: tuple[CallOutcome, ...]) -> set[str]:
    """Return what the run has touched by these calls, which it never forgets."""
    marks = {mark for o in outcomes for mark in o.marks}
    return marks | {UNTRUSTED for o in outcomes if o.trust == "untrusted"}


def _tools_waiting(state: RunState, result: ToolsWaiting, number: int) -> Transition:
    """Wait for a person before children before a time: whatever comes first wakes the run, and the
    calls that still wait then wait again.
    """
    outcomes = result.outcomes
    if state.cancel_requested:
        return cancelled(state, outcomes)
    waits, asked = undecided(state, result.waits), asked_events(result.waits, number)
    memo = {k: v for k, v in state.memo.items() if k != DECIDED}
    state = replace(state, memo=memo)
    if len(waits) < len(result.waits) and not needs_people(waits):
        return Transition(queued(state), asked, outcomes=outcomes)
    kinds = {w.kind for w in waits}
    until = min((w.until for w in waits if w.until is not None), default=None)
    if kinds == {"time"} and until is not None:
        return _delay(state, {"for": "timer"}, until, number, outcomes)
    kind, status = next((w for of, w in _WAITS.items() if of in kinds), _WAITS["child"])
    shown = [w for w in waits if kind == "approval" or w.kind in {kind, "child"}]
    waiting = {"for": kind, "calls": [_call_json(number, w) for w in shown]}
    event = Event(ev.RUN_WAITING, waiting, number)
    nxt = replace(state, status=status, not_before=until, waiting=waiting, turn_at=None)
    return Transition(nxt, (*asked, event), outcomes=outcomes)


_WAITS: Final = {
    "approval": ("approval", Status.WAITING_APPROVAL),
    "input": ("input", Status.WAITING_INPUT),
    "child": ("children", Status.WAITING_CHILDREN),
}
"""What a run waits for that waits for several things: the first of these."""


def _call_json(step: int, wait: Wait) -> Json:
    return {"call": f"{step}.{wait.index}", "kind": wait.kind, **wait.to_json()}


def _tools_unknown(
    state: RunState,
    outcomes: tuple[CallOutcome, ...],
    unknown: tuple[int, ...],
    number: int,
) -> Transition:
    waiting = {"for": "unknown_effect", "calls": [f"{number}.{i}" for i in unknown]}
    if state.cancel_requested:
        return cancelled(state, outcomes)
    nxt = replace(
        state, status=Status.WAITING_APPROVAL, not_before=None, waiting=waiting, turn_at=None
    )
    return Transition(nxt, (Event(ev.RUN_WAITING, waiting),), outcomes=outcomes)


def _step_counted(state: RunState) -> RunState:
    memo = {k: v for k, v in state.memo.items() if k not in OF_ONE_STEP}
    return replace(state, step=state.step + 1, failures=0, limited=0, deaths=0, memo=memo)


def _delay(
    state: RunState,
    waiting: dict[str, Json],
    until: datetime,
    number: int,
    outcomes: tuple[CallOutcome, ...] = (),
) -> Transition:
    """Let the run wait until `until`, or fail it now if its own deadline comes first."""
    deadline = state.limits.deadline
    if deadline is not None and until > deadline:
        return replace(give_up(state, StopReason.DEADLINE), outcomes=outcomes)
    told = {"why": waiting["for"], "until": until.isoformat()} | {
        k: v for k, v in waiting.items() if k in {"scope", "code"}
    }
    delayed = replace(state, status=Status.DELAYED, not_before=until, waiting=waiting, turn_at=None)
    return Transition(delayed, (Event(ev.RUN_DELAYED, told, number),), outcomes=outcomes)


_OF_CACHES: Final = ("cached_input_tokens", "cache_write_tokens")


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
    out |= {n: v for n in _OF_CACHES if (v := getattr(answer, n))}
    if answer.restarts:
        out["restarts"] = answer.restarts
    if answer.guidance.again:
        out["again"] = True  # it was no final answer after all: another one was asked for
    if answer.scripted:
        out["scripted"] = True
    if answer.first_token_ms is not None:
        out["first_token_ms"] = round(answer.first_token_ms, 1)
    if answer.context is not None:
        out["context"] = answer.context
    return out


def _outcome_event(outcome: CallOutcome, number: int) -> Event:
    if is_denied(outcome):
        name = ev.TOOL_REJECTED
    elif outcome.error_type == "TIMEOUT":
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
    for mark in ("duplicate_of", "cached_from", "served_by"):
        if (value := getattr(outcome, mark)) is not None:
            payload[mark] = value
    if outcome.policy:
        told = ("verdict", "rule", "version", *(("reasons",) if is_denied(outcome) else ()))
        payload["policy"] = {name: outcome.policy[name] for name in told}
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
