"""The rules of a run that waits for people to approve tool calls.

A run goes on when every approval that its step waits for is decided or expired, so that calls run
in the order in which they were asked for. A call of the same step that waits for a time wakes it
earlier; what is decided by then runs then. Approvals change only under their run's row lock: what
the rules see is what holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from harness_common.core import events as ev
from harness_common.core.approval import DENIED, EXPIRED, told_denied, told_expired
from harness_common.core.events import Event
from harness_common.core.inputs import ApprovalDecided, Input
from harness_common.core.message import Json
from harness_common.core.run import DECIDED, RunState, Status, Transition
from harness_common.core.step import CallOutcome, Wait
from harness_common.core.tool_call import CallStatus
from harness_common.core.values import replace

_PEOPLE = {"approval", "input"}


def waits_for_approval(state: RunState) -> bool:
    """Tell whether a run waits for an approval, rather than for what became of an effect."""
    waiting = state.waiting or {}
    return state.status is Status.WAITING_APPROVAL and waiting.get("for") == "approval"


def asked_events(waits: Sequence[Wait], number: int) -> tuple[Event, ...]:
    """Record what is asked for the first time."""
    return tuple(
        Event(ev.APPROVAL_REQUESTED, {"call": f"{number}.{w.index}", **w.to_json()}, number)
        for w in waits
        if w.record is not None
    )


def undecided(state: RunState, waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """Return the waits without those that a person decided while the step was under way."""
    decided = state.memo.get(DECIDED, ())
    return tuple(w for w in waits if w.about.get("approval") not in decided)


def needs_people(waits: Sequence[Wait]) -> bool:
    """Tell whether any of the waits is for a person."""
    return any(w.kind in _PEOPLE for w in waits)


def queued(state: RunState) -> RunState:
    """Return a run that waits for its admission."""
    return replace(state, status=Status.QUEUED, not_before=None, waiting=None, turn_at=None)


def approval_decided(state: RunState, one: Input, now: datetime) -> Transition:
    """Note a decision; the run goes on when it was the last one that it waits for."""
    assert isinstance(one, ApprovalDecided)
    number = state.step + 1
    told: dict[str, Json] = {
        "approval": one.approval,
        "call": f"{number}.{one.index}",
        "tool": one.tool,
        "verdict": one.verdict,
        "by": one.by,
    }
    if one.edited:
        told["edited"] = True
    if one.reason:
        told["reason"] = one.reason
    events = (Event(ev.APPROVAL_DECIDED, told, number),)
    outcomes: tuple[CallOutcome, ...] = ()
    if one.verdict == "denied":
        outcomes = (_rejected(one.index, one.tool, told_denied(one.tool, one.reason), DENIED),)
    if state.claimed:
        # The owner may have read the ledger before: its commit must not wait for what is decided.
        memo = {**state.memo, DECIDED: [*state.memo.get(DECIDED, ()), one.approval]}
        return Transition(replace(state, memo=memo), events, outcomes=outcomes)
    if not waits_for_approval(state):
        return Transition(state, events, outcomes=outcomes)
    left = [c for c in state.waiting["calls"] if c.get("approval") != one.approval]
    return Transition(wait_on(state, left), events, outcomes=outcomes)


def approvals_due(state: RunState, now: datetime) -> Transition:
    """Close what nobody decided or answered in time; wake the run for a time that has come."""
    late = [c for c in state.waiting["calls"] if _is_late(c, now)]
    left = [c for c in state.waiting["calls"] if not _is_late(c, now)]
    expired = [c for c in late if c["kind"] == "approval"]
    events = tuple(
        Event(
            ev.APPROVAL_EXPIRED,
            {"approval": c["approval"], "call": c["call"], "tool": c["tool"]},
            state.step + 1,
        )
        for c in expired
    )
    outcomes = tuple(
        _rejected(c["index"], c["tool"], told_expired(c["tool"]), EXPIRED) for c in expired
    ) + tuple(
        CallOutcome(
            c["index"], "", "ask_user", CallStatus.FAILED, "nobody answered in time",
            "INPUT_TIMEOUT",
        )
        for c in late
        if c["kind"] == "input"
    )  # fmt: skip
    woken = any(c["kind"] == "time" for c in late)
    return Transition(queued(state) if woken else wait_on(state, left), events, outcomes=outcomes)


def question_answered(state: RunState, index: int) -> RunState:
    """Return what a run that waits for approvals and answers still waits for after an answer."""
    left = [c for c in state.waiting["calls"] if c["index"] != index]
    return wait_on(state, left)


def wait_on(state: RunState, left: Sequence[dict[str, Any]]) -> RunState:
    """Wait for the people that are left, or go on."""
    kinds = {c["kind"] for c in left}
    if not kinds & _PEOPLE:
        return queued(state)
    waits_for, status = (
        ("approval", Status.WAITING_APPROVAL)
        if "approval" in kinds
        else ("input", Status.WAITING_INPUT)
    )
    times = [datetime.fromisoformat(c["until"]) for c in left if c["until"] is not None]
    return replace(
        state,
        status=status,
        waiting={"for": waits_for, "calls": list(left)},
        not_before=min(times, default=None),
    )


def _is_late(call: dict[str, Any], now: datetime) -> bool:
    return call["until"] is not None and datetime.fromisoformat(call["until"]) <= now


def _rejected(index: int, tool: str, text: str, error: str) -> CallOutcome:
    return CallOutcome(index, "", tool, CallStatus.REJECTED, text, error)
