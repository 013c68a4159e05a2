"""The rules of approvals: by example, and against whatever people, clocks and crashes do to a run
at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from harness_common.core import events as ev
from harness_common.core.approval import digest
from harness_common.core.errors import IllegalTransition
from harness_common.core.inputs import (
    Admit,
    ApprovalDecided,
    CancelRequested,
    InputGiven,
    OwnerLost,
    StepDone,
    TimerDue,
)
from harness_common.core.rules import advance
from harness_common.core.run import DECIDED, TERMINAL, RunState, Status, content, wake_at
from harness_common.core.step import CallOutcome, ToolsDone, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus

NOW = datetime(2025, 3, 4, tzinfo=UTC)
HOUR = timedelta(hours=1)


def running(**more: Any) -> RunState:
    return RunState(
        status=Status.RUNNING, version=7, step=1, next_kind="tools", started=True, claimed=True,
        **more,
    )  # fmt: skip


def approval(index: int, until: datetime = NOW + HOUR, *, new: bool = True) -> CallOutcome:
    about = {"approval": f"appr_{index}", "tool": "pay"}
    wait = Wait(index, "approval", until, about, {"idx": index} if new else None)
    return CallOutcome(index, "c", "pay", CallStatus.AWAITING_APPROVAL, "approval", wait=wait)


def other(index: int, kind: Any, until: datetime | None = None) -> CallOutcome:
    wait = Wait(index, kind, until, {"question": "?"})
    return CallOutcome(index, "c", kind, CallStatus.RUNNING, kind, wait=wait, resume_at=until)


def waits(*calls: CallOutcome, state: RunState | None = None) -> RunState:
    return advance(state or running(), [StepDone(ToolsWaiting(calls), NOW)], NOW).state


def decided(index: int, verdict: Any = "approved", **more: Any) -> ApprovalDecided:
    return ApprovalDecided("ann", f"appr_{index}", index, "pay", verdict, **more)


def types(transition: Any) -> list[str]:
    return [e.type for e in transition.events]


def test_a_run_waits_for_approvals_before_anything_else():
    calls = (other(0, "child"), other(1, "time", NOW + HOUR), other(2, "input"), approval(3))
    done = advance(running(), [StepDone(ToolsWaiting(calls), NOW)], NOW)
    assert done.state.status is Status.WAITING_APPROVAL
    assert not done.state.claimed
    assert [c["kind"] for c in done.state.waiting["calls"]] == [
        "child",
        "time",
        "input",
        "approval",
    ]
    assert types(done) == [ev.STEP_STARTED, ev.APPROVAL_REQUESTED, ev.RUN_WAITING]
    assert done.state.not_before == NOW + HOUR


def test_what_was_asked_before_is_not_asked_again():
    calls = (approval(0, new=False), approval(1))
    done = advance(running(), [StepDone(ToolsWaiting(calls), NOW)], NOW)
    asked = [e for e in done.events if e.type == ev.APPROVAL_REQUESTED]
    assert [e.payload["call"] for e in asked] == ["2.1"]


def test_a_decision_over_a_step_under_way_is_kept_and_no_part_of_a_checkpoint():
    state = advance(running(), [decided(0)], NOW).state
    assert state.memo[DECIDED] == ["appr_0"]
    assert content(state)["memo"] == {}
    done = advance(state, [StepDone(ToolsWaiting((approval(0), approval(1))), NOW)], NOW).state
    assert (done.status, done.memo) == (Status.WAITING_APPROVAL, {})
    assert [c["index"] for c in done.waiting["calls"]] == [1]
    alone = advance(state, [StepDone(ToolsWaiting((approval(0),)), NOW)], NOW).state
    assert alone.status is Status.QUEUED
    with_time = ToolsWaiting((approval(0), other(1, "time", NOW + HOUR)))
    assert advance(state, [StepDone(with_time, NOW)], NOW).state.status is Status.QUEUED


def test_after_the_approvals_an_open_question_is_waited_for():
    state = waits(approval(0), other(1, "input", NOW + 2 * HOUR))
    left = advance(state, [decided(0)], NOW).state
    assert (left.status, left.waiting["for"]) == (Status.WAITING_INPUT, "input")
    assert left.not_before == NOW + 2 * HOUR
    assert advance(left, [InputGiven("ann", 1, "x")], NOW).state.status is Status.QUEUED


def test_a_question_may_be_answered_before_the_approval():
    state = waits(approval(0), other(1, "input"))
    left = advance(state, [InputGiven("ann", 1, "x")], NOW)
    assert left.state.status is Status.WAITING_APPROVAL
    assert left.outcomes[0].status is CallStatus.SUCCEEDED
    assert advance(left.state, [decided(0)], NOW).state.status is Status.QUEUED


def test_a_denial_ends_its_call_and_an_approval_does_not():
    state = waits(approval(0), approval(1))
    no = advance(state, [decided(1, "denied", reason="why")], NOW)
    assert [(o.index, o.status, o.error_type) for o in no.outcomes] == [
        (1, CallStatus.REJECTED, "APPROVAL_DENIED")
    ]
    assert "why" in no.outcomes[0].content
    assert advance(no.state, [decided(0)], NOW).outcomes == ()


def test_an_answer_to_an_unknown_effect_is_not_mixed_up():
    state = RunState(
        status=Status.WAITING_APPROVAL, waiting={"for": "unknown_effect", "calls": ["2.0"]}
    )
    assert advance(state, [decided(0)], NOW).state == state
    with pytest.raises(IllegalTransition):
        advance(state, [InputGiven("ann", 0, "x")], NOW)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False,
       allow_infinity=False) | st.text(), lambda inner: st.lists(inner, max_size=4)
       | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12))  # fmt: skip
def test_a_digest_names_arguments_however_they_are_written(value):
    def rewritten(part: Any) -> Any:
        if isinstance(part, dict):
            return {k: rewritten(v) for k, v in reversed(part.items())}
        if isinstance(part, list):
            return [rewritten(v) for v in part]
        whole = isinstance(part, int) and not isinstance(part, bool) and abs(part) < 2**50
        return float(part) if whole else part

    arguments = {"v": value}
    assert digest("pay", arguments) == digest("pay", rewritten(arguments))
    assert digest("pay", arguments) != digest("pay", {"v": [value]})
    assert digest("pay", arguments) != digest("play", arguments)


# ── everything at once ───────────────────────────────────────────────────────────────────────────


@dataclass
class Call:
    """One call of the answer: what it waits for, and what Postgres holds of its approval."""

    kind: str
    until: datetime | None
    asked: bool = False
    verdict: str = ""
    ended: bool = False
    runs: int = 0
    expirable: bool = field(default=True)


class ApprovalMachine(RuleBasedStateMachine):
    """A tools step with approvals, a question and a timer; workers that read, die and commit late;
    people who decide whenever; a scheduler that looks whenever.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.state = waits_first()
        self.calls = [
            Call("approval", NOW + HOUR), Call("time", NOW + HOUR / 2),
            Call("approval", NOW + 2 * HOUR),
            Call("input", NOW + 3 * HOUR), Call("approval", NOW + 2 * HOUR),
        ]  # fmt: skip
        self.read: list[str] | None = None
        """What the owner saw of each call when it took the step."""
        self.events: list[str] = []
        self.started = False

    def put(self, *inputs: Any) -> None:
        done = advance(self.state, list(inputs), self.now)
        self.state = done.state
        self.events += types(done)
        for outcome in done.outcomes:
            call = self.calls[outcome.index]
            if outcome.error_type == "APPROVAL_EXPIRED":
                assert call.verdict == "", "expiry after a decision"
                assert call.until is not None
                assert call.until <= self.now, "expiry before its time"
                call.verdict = "expired"
            if outcome.status in {CallStatus.REJECTED, CallStatus.FAILED, CallStatus.SUCCEEDED}:
                call.ended = True
            if outcome.wait is not None and outcome.wait.record is not None:
                assert not call.asked, "asked twice"
                call.asked = True

    @precondition(lambda self: self.state.status is Status.QUEUED)
    @rule()
    def admit(self) -> None:
        self.put(Admit())

    @precondition(lambda self: self.state.status is Status.RUNNING and not self.state.claimed)
    @rule()
    def claim(self) -> None:
        self.state = replace(self.state, claimed=True)
        self.read = [c.verdict for c in self.calls]

    @precondition(lambda self: self.state.claimed and self.read is not None)
    @rule()
    def finish(self) -> None:
        assert self.read is not None
        outcomes = [self._outcome(i, seen) for i, seen in enumerate(self.read)]
        self.read = None
        waiting = any(o.wait for o in outcomes)
        result = ToolsWaiting(tuple(outcomes)) if waiting else ToolsDone(tuple(outcomes))
        self.put(StepDone(result, self.now))

    def _outcome(self, index: int, seen: str) -> CallOutcome:
        """Do what the runner does with one call, by what the owner saw of it."""
        call = self.calls[index]
        if call.ended:
            return CallOutcome(index, "c", "t", CallStatus.SUCCEEDED, "x", recorded=True)
        if call.kind == "approval":
            if seen != "approved":
                return approval_of(index, call)
            call.runs += 1
            return CallOutcome(index, "c", "pay", CallStatus.SUCCEEDED, "paid")
        if call.kind == "time" and call.until is not None and call.until <= self.now:
            return CallOutcome(index, "c", "nap", CallStatus.SUCCEEDED, "rested")
        return other(index, call.kind, call.until)

    @precondition(lambda self: self.state.claimed)
    @rule()
    def the_owner_dies(self) -> None:
        self.read = None
        self.put(OwnerLost("w", "killed"))

    @precondition(lambda self: self.state.status not in TERMINAL)
    @rule(index=st.sampled_from([0, 2, 4]), verdict=st.sampled_from(["approved", "denied"]))
    def decide(self, index: int, verdict: Any) -> None:
        call = self.calls[index]
        assert call.until is not None
        if not call.asked or call.verdict or call.until <= self.now:
            return  # `approval_decide.sql` compares this
        call.verdict = verdict
        self.put(decided(index, verdict))

    @rule()
    def answer(self) -> None:
        open_ = (self.state.waiting or {}).get("for") in {"approval", "input"}
        if open_ and not self.calls[3].ended and any(
            c["kind"] == "input" for c in self.state.waiting["calls"]
        ):  # fmt: skip
            self.put(InputGiven("ann", 3, "yes"))

    @rule(minutes=st.sampled_from([1, 20, 31, 61]))
    def time_passes(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @rule()
    def the_scheduler_looks(self) -> None:
        due = wake_at(self.state, self.now, 5)
        looks = self.state.status not in {Status.RUNNING, Status.QUEUED, *TERMINAL}
        if looks and due is not None and due <= self.now:
            self.put(TimerDue())

    @precondition(lambda self: self.state.status not in TERMINAL and len(self.events) > 40)
    @rule()
    def cancel(self) -> None:
        self.put(CancelRequested("ann"))

    @invariant()
    def no_call_runs_without_a_yes_or_twice_in_one_commit(self) -> None:
        for call in self.calls:
            if call.kind == "approval":
                assert call.runs == 0 or call.verdict == "approved"

    @invariant()
    def a_run_that_waits_for_people_waits_for_somebody(self) -> None:
        """Never stuck: what it waits for is open, and every open approval is waited for."""
        if (self.state.waiting or {}).get("for") != "approval":
            return
        waited = {c["index"] for c in self.state.waiting["calls"] if c["kind"] == "approval"}
        open_ = {i for i, c in enumerate(self.calls) if c.kind == "approval" and c.asked}
        assert waited == {i for i in open_ if not self.calls[i].verdict}
        assert waited
        times = [datetime.fromisoformat(c["until"]) for c in self.state.waiting["calls"]
                 if c["until"]]  # fmt: skip
        assert self.state.not_before is not None
        assert self.state.not_before <= min(times), "expiry is enforced"

    @invariant()
    def each_approval_is_asked_and_closed_once(self) -> None:
        asked = self.events.count(ev.APPROVAL_REQUESTED)
        assert asked <= 3
        closed = self.events.count(ev.APPROVAL_DECIDED) + self.events.count(ev.APPROVAL_EXPIRED)
        assert closed == sum(bool(c.verdict) for c in self.calls)
        assert closed <= asked


def waits_first() -> RunState:
    return RunState(
        status=Status.RUNNING, version=1, step=1, next_kind="tools", started=True, turn_at=NOW
    )


def approval_of(index: int, call: Call) -> CallOutcome:
    assert call.until is not None
    return approval(index, call.until, new=not call.asked)


ApprovalMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_approvals_against_everything = ApprovalMachine.TestCase
