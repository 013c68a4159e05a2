"""A model that keeps asking: told to stop at the third denial in a row, ended at the fifth."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from harness_common.core import events as ev
from harness_common.core.denials import END_AFTER, STOP_AFTER, count_denials
from harness_common.core.inputs import StepDone
from harness_common.core.message import ToolResult
from harness_common.core.rules import advance
from harness_common.core.run import RunState, Status, Transition
from harness_common.core.step import CallOutcome, ToolsDone
from harness_common.core.tool_call import CallStatus

NOW = datetime(2025, 3, 4, tzinfo=UTC)


def denied(name: str = "pay", index: int = 0, error: str = "PERMISSION_DENIED") -> CallOutcome:
    return CallOutcome(index, f"c{index}", name, CallStatus.REJECTED, "no", error)


def done(name: str = "pay", index: int = 0) -> CallOutcome:
    return CallOutcome(index, f"c{index}", name, CallStatus.SUCCEEDED, "ok")


def play(*steps):
    """Play tools steps; return the last transition."""
    state = RunState(Status.RUNNING, version=1, next_kind="tools", claimed=True, started=True)
    transition = Transition(state)
    for outcomes in steps:
        one = StepDone(ToolsDone(tuple(outcomes)), NOW)
        transition = advance(state, [one], NOW)
        kept = transition.state.memo
        state = RunState(
            Status.RUNNING, version=1, next_kind="tools", claimed=True, started=True, memo=kept
        )
    return transition


def said(transition):
    return [b.content for m in transition.messages for b in m.content if isinstance(b, ToolResult)]


def types(transition):
    return [e.type for e in transition.events]


def test_three_in_a_row_and_the_model_is_told_to_stop():
    for times in (1, 2):
        assert said(play(*[[denied()]] * times)) == ["no"]
    third = play([denied()], [denied()], [denied()])
    (text,) = said(third)
    assert text.startswith("no\nStop trying: pay was denied 3 times in a row")
    assert "2 more such calls" in text
    assert third.outcomes[0].content == text, "the ledger has what the model was told"
    (event,) = [e for e in third.events if e.type == ev.TOOL_DENIED_REPEATEDLY]
    assert event.payload == {"tool": "pay", "times": 3}
    assert third.state.status is Status.RUNNING


def test_two_more_and_the_run_ends_with_a_reason_of_its_own():
    assert play(*[[denied()]] * (END_AFTER - 1)).state.status is Status.RUNNING
    last = play(*[[denied()]] * END_AFTER)
    assert (last.state.status, last.state.stop_reason) == (Status.FAILED, "denied_repeatedly")
    assert last.state.error["code"] == "DENIED_REPEATEDLY"
    assert types(last)[-1] == ev.RUN_FAILED
    assert last.messages, "the step is recorded all the same"


def test_a_call_that_was_not_denied_begins_the_count_anew():
    assert said(play([denied()], [denied()], [done()], [denied()])) == ["no"]
    failed = CallOutcome(0, "c", "pay", CallStatus.REJECTED, "bad", "ARGUMENTS_INVALID")
    assert said(play([denied()], [denied()], [failed], [denied()])) == ["no"]


def test_each_tool_is_counted_by_itself_and_other_steps_do_not_matter():
    steps = [[denied("a")], [denied("b")], [done("c")], [denied("a")], [denied("b")]]
    assert play(*steps).state.memo["denied"] == {"a": 2, "b": 2}
    assert said(play(*steps, [denied("a")]))[0].startswith("no\nStop trying: a")


def test_five_in_one_answer_are_one_mistake():
    many = play([denied(index=i) for i in range(5)])
    assert many.state.memo["denied"] == {"pay": 1}
    assert many.state.status is Status.RUNNING
    mixed = count_denials({"denied": {"pay": 2}}, (denied(), done(index=1)), 3)
    assert (mixed.memo, mixed.events) == ({}, ())


@pytest.mark.parametrize("error", ["PERMISSION_DENIED", "APPROVAL_DENIED"])
def test_a_denial_has_an_event_of_its_own(error):
    assert ev.TOOL_REJECTED in types(play([denied(error=error)]))
    assert ev.TOOL_FAILED not in types(play([denied(error=error)]))


def test_nothing_to_count_leaves_the_memo_as_it_is():
    memo = {"marks": ["private"]}
    assert count_denials(memo, (done(),), 1).memo is memo
    assert STOP_AFTER == 3


def test_what_the_calls_touched_is_kept():
    page = CallOutcome(0, "c", "page", CallStatus.FAILED, "x", trust="untrusted")
    assert play([page]).state.memo == {"marks": ["untrusted"]}
    query = CallOutcome(0, "c", "q", CallStatus.SUCCEEDED, "x", marks=("private",))
    assert play([page], [query]).state.memo == {"marks": ["private", "untrusted"]}
