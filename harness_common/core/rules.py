"""The run's state machine: `advance(state, inputs, now) -> Transition`. Pure: no I/O, no clock, no
randomness.

The table `TABLE` is keyed on (status, input type); a pair that is not in it is illegal. What an
owner brings back is in `core.step_rules`; what comes from elsewhere is here. `store.apply` is the
only code that writes what a transition says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final

from harness_common.core import events as ev
from harness_common.core.approval_rules import (
    approval_decided,
    approvals_due,
    question_answered,
    queued,
    waits_for_approval,
)
from harness_common.core.ending import cancelled, charged, end, give_up, past_deadline, then
from harness_common.core.errors import IllegalTransition
from harness_common.core.events import Event
from harness_common.core.inputs import (
    Admit,
    ApprovalDecided,
    CancelRequested,
    ChildrenDone,
    EffectsResolved,
    Input,
    InputGiven,
    OwnerLost,
    PauseRequested,
    Released,
    ResumeRequested,
    Steered,
    StepDone,
    StepFailed,
    TimerDue,
)
from harness_common.core.message import Json, user
from harness_common.core.run import DEATHS, TERMINAL, WAITING, RunState, Status, Transition
from harness_common.core.step import MODEL, CallOutcome
from harness_common.core.step_rules import step_done, step_failed
from harness_common.core.stop_reasons import StopReason
from harness_common.core.tool_call import CallStatus
from harness_common.core.values import replace

SUSPECT_DEATHS: Final = 2
"""Process deaths while holding a run after which it runs alone; only a death alone is its own."""
_DEATHS_TOLD: Final = 5
"""How many of the last deaths a run remembers, as the evidence of a verdict."""


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
        folded = then(folded, _at_safe_point(rule(folded.state, one, now)))
    after = folded.state
    if after.status is not state.status or after.step != state.step:
        after = replace(after, version=state.version + 1)
    return replace(folded, state=after)


def is_suspect(state: RunState) -> bool:
    """Tell whether a run has to run alone: processes that held it died."""
    return state.deaths >= SUSPECT_DEATHS


def _at_safe_point(done: Transition) -> Transition:
    """Act on what was asked for while a step was under way, now that none is: messages for the
    model are said, a pause begins.
    """
    state = done.state
    if state.claimed or state.status in TERMINAL:
        return done
    texts = state.memo.get("steer")
    if texts and state.next_kind == MODEL:
        memo = {k: v for k, v in state.memo.items() if k != "steer"}
        said = tuple(user(text) for text in texts)
        state = replace(state, memo=memo, messages=state.messages + len(said))
        done = replace(done, state=state, messages=done.messages + said)
    if state.pause_requested and state.status in {Status.RUNNING, Status.QUEUED}:
        paused = replace(state, status=Status.PAUSED, turn_at=None, waiting={"for": "resume"})
        return then(done, Transition(paused, (Event(ev.RUN_PAUSED, {"step": state.step}),)))
    return done


def _admit(state: RunState, _: Input, now: datetime) -> Transition:
    if state.not_before is not None and state.not_before > now:
        raise IllegalTransition(f"not before {state.not_before.isoformat()}")
    if past_deadline(state, now):
        return give_up(state, StopReason.DEADLINE)
    name = ev.RUN_RESUMED if state.started else ev.RUN_STARTED
    nxt = replace(
        state,
        status=Status.RUNNING,
        started=True,
        not_before=None,
        claimed=False,
        turn_at=now,
        waiting=None,
    )
    return Transition(nxt, (Event(name, {"step": state.step, "kind": state.next_kind}),))


def _timer_due(state: RunState, _: Input, now: datetime) -> Transition:
    """Wake a delayed run; in any state, end a run whose wall clock is over, unless somebody works
    on it, who ends it.
    """
    if state.claimed:
        return Transition(state)
    if past_deadline(state, now):
        return give_up(state, StopReason.DEADLINE)
    early = state.not_before is not None and state.not_before > now
    looks = state.status in {Status.WAITING_CHILDREN, Status.WAITING_APPROVAL}
    if state.not_before is None or (early and looks):
        return Transition(state)  # looked at, and nothing is due: when to look again is set anew
    if early:
        raise IllegalTransition(f"not before {state.not_before.isoformat()}")
    if state.status is Status.WAITING_INPUT:
        return _unanswered(state, now)
    if waits_for_approval(state):
        return approvals_due(state, now)
    return Transition(queued(state))


def _unanswered(state: RunState, now: datetime) -> Transition:
    """Close the questions that nobody answered in time; the model is told so."""
    calls = [c for c in state.waiting["calls"] if c["until"] is not None]
    late = [c for c in calls if datetime.fromisoformat(c["until"]) <= now]
    outcomes = tuple(
        _answer(c["index"], CallStatus.FAILED, "nobody answered in time", "INPUT_TIMEOUT")
        for c in late
        if c["kind"] == "input"
    )
    return Transition(queued(state), outcomes=outcomes)


def _answer(index: int, status: CallStatus, text: str, error: str | None = None) -> CallOutcome:
    return CallOutcome(index, "", "ask_user", status, text, error)


def _told(asked: Mapping[str, Json], text: str) -> CallOutcome:
    """Keep an answer for a call that is made again with it: it goes on waiting, for a worker."""
    until = datetime.fromisoformat(asked["until"])
    return CallOutcome(
        asked["index"], "", "ask_user", CallStatus.RUNNING, "input", resume_at=until, answer=text
    )


def _input_given(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, InputGiven)
    asks = state.status is Status.WAITING_INPUT or waits_for_approval(state)
    calls = state.waiting["calls"] if asks else ()
    open_calls = [c for c in calls if c["kind"] == "input"]
    if one.index not in {c["index"] for c in open_calls}:
        raise IllegalTransition(f"call {state.step + 1}.{one.index} waits for no answer")
    left = [c for c in state.waiting["calls"] if c["index"] != one.index]
    given = Event(
        ev.RUN_INPUT_GIVEN,
        {"call": f"{state.step + 1}.{one.index}", "by": one.by},
        state.step + 1,
    )
    (asked,) = (c for c in open_calls if c["index"] == one.index)
    outcomes = (
        _told(asked, one.text)
        if asked.get("call_again")
        else _answer(one.index, CallStatus.SUCCEEDED, one.text),
    )
    if waits_for_approval(state):
        return Transition(question_answered(state, one.index), (given,), outcomes=outcomes)
    if any(c["kind"] == "input" for c in left):
        waiting = {**state.waiting, "calls": left}
        return Transition(replace(state, waiting=waiting), (given,), outcomes=outcomes)
    return Transition(queued(state), (given,), outcomes=outcomes)


def _children_done(state: RunState, _: Input, now: datetime) -> Transition:
    return Transition(queued(state))


def _effects_resolved(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, EffectsResolved)
    return Transition(queued(state), (Event(ev.RUN_EFFECTS_RESOLVED, {"by": one.by}),))


def _cancel(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, CancelRequested)
    asked = Event(ev.RUN_CANCEL_REQUESTED, {"by": one.by, "reason": one.reason})
    flagged = replace(state, cancel_requested=True)
    if state.status is Status.RUNNING and state.claimed:
        return Transition(flagged, () if state.cancel_requested else (asked,))
    done = cancelled(flagged)
    return Transition(done.state, (() if state.cancel_requested else (asked,)) + done.events)


def _pause(state: RunState, one: Input, now: datetime) -> Transition:
    """Note the wish; `_at_safe_point` pauses at once what nobody works on."""
    assert isinstance(one, PauseRequested)
    if state.pause_requested:
        return Transition(state)
    asked = Event(ev.RUN_PAUSE_REQUESTED, {"by": one.by, "reason": one.reason})
    return Transition(replace(state, pause_requested=True), (asked,))


def _resume(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, ResumeRequested)
    asked = Event(ev.RUN_RESUME_REQUESTED, {"by": one.by})
    if state.status is Status.PAUSED:
        return Transition(replace(queued(state), pause_requested=False), (asked,))
    if not state.pause_requested:
        return Transition(state)
    return Transition(replace(state, pause_requested=False), (asked,))


def _steer(state: RunState, one: Input, now: datetime) -> Transition:
    """Keep a message for the next model step; `_at_safe_point` says it as soon as it may be said:
    never between a call and its result.
    """
    assert isinstance(one, Steered)
    texts: list[Json] = [*state.memo.get("steer", ()), one.text]
    told = Event(ev.RUN_STEERED, {"by": one.by, "chars": len(one.text)})
    return Transition(replace(state, memo={**state.memo, "steer": texts}), (told,))


def _owner_lost(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, OwnerLost)
    deaths = state.deaths + 1
    lost = Event(
        ev.RUN_RECOVERED,
        {"worker": one.worker, "why": one.why, "deaths": deaths, "solo": one.solo},
        state.step + 1,
    )
    told = [*state.memo.get(DEATHS, ()), {"worker": one.worker, "why": one.why, "solo": one.solo}]
    memo = {**state.memo, DEATHS: told[-_DEATHS_TOLD:]}
    free = replace(state, claimed=False, deaths=deaths, memo=memo)
    if state.cancel_requested:
        return then(lost, cancelled(free))
    if is_suspect(state) and one.solo:
        error = {
            "category": "permanent",
            "code": "POISONED",
            "message": f"{deaths} worker processes died while they held step {state.step + 1}, the "
            f"last one ({one.worker}: {one.why}) with nothing else in hand",
            "detail": {"step": state.step + 1, "deaths": memo[DEATHS]},
        }
        return then(lost, end(replace(free, error=error), Status.FAILED, StopReason.POISONED))
    return Transition(free, (lost,))


def _released(state: RunState, one: Input, now: datetime) -> Transition:
    assert isinstance(one, Released)
    free = charged(replace(state, claimed=False), one.spent)
    return cancelled(free) if state.cancel_requested else Transition(free)


Rule = Callable[[RunState, Input, datetime], Transition]

_LIVE: Final = (Status.QUEUED, Status.RUNNING, Status.DELAYED, *sorted(WAITING))

TABLE: Final[Mapping[tuple[Status, type[Input]], Rule]] = {
    (Status.QUEUED, Admit): _admit,
    (Status.RUNNING, StepDone): step_done,
    (Status.RUNNING, StepFailed): step_failed,
    (Status.RUNNING, OwnerLost): _owner_lost,
    (Status.RUNNING, Released): _released,
    (Status.WAITING_INPUT, InputGiven): _input_given,
    (Status.WAITING_CHILDREN, ChildrenDone): _children_done,
    (Status.WAITING_APPROVAL, InputGiven): _input_given,
    (Status.WAITING_APPROVAL, EffectsResolved): _effects_resolved,
    **{(s, TimerDue): _timer_due for s in _LIVE},
    **{(s, CancelRequested): _cancel for s in _LIVE},
    **{(s, PauseRequested): _pause for s in _LIVE if s is not Status.PAUSED},
    **{(s, ResumeRequested): _resume for s in _LIVE},
    **{(s, Steered): _steer for s in _LIVE},
    **{(s, ApprovalDecided): approval_decided for s in _LIVE},
}
"""Every legal (status, input type); the rest is illegal. `tests/unit/test_run_table.py` lists all
pairs.
"""
