"""What guards say about a step becomes messages, events, memo, another question or the end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance, remembered, summed
from harness_common.core.inputs import StepDone
from harness_common.core.message import Message, Text, ToolUse, user
from harness_common.core.run import RunState, Status, Transition
from harness_common.core.step import CallOutcome, ModelAnswered, ToolsDone
from harness_common.core.step_rules import step_done
from harness_common.core.tool_call import CallStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = RunState(status=Status.RUNNING, claimed=True, started=True, turn_at=NOW)
NOTE = Event("guard.warned", {"guard": "test"})


def _answered(guidance: Guidance, *, tools: bool = False) -> Transition:
    block = ToolUse("u1", "look", {}) if tools else Text("done")
    answer = ModelAnswered(Message("assistant", (block,)), "stop", "m", guidance=guidance)
    return step_done(RUNNING, StepDone(answer, NOW), NOW)


def _results(guidance: Guidance) -> Transition:
    outcome = CallOutcome(0, "u1", "look", CallStatus.SUCCEEDED, "seen")
    return step_done(RUNNING, StepDone(ToolsDone((outcome,), guidance), NOW), NOW)


def test_nothing_said_changes_nothing() -> None:
    done = _answered(NOTHING)
    assert done.state.status is Status.SUCCEEDED
    assert done.state.output == "done"
    assert len(done.messages) == done.state.messages == 1


def test_an_answer_that_does_not_count_is_asked_for_again() -> None:
    done = _answered(Guidance((user("in JSON, please"),), (NOTE,), {"asked": 1}, again=True))
    assert done.state.status is Status.RUNNING
    assert done.state.next_kind == "model"
    assert [m.text() for m in done.messages] == ["done", "in JSON, please"]
    assert done.state.messages == 2
    assert done.state.memo == {"asked": 1}
    assert NOTE in done.events


def test_asking_again_is_held_by_the_cap_on_answers() -> None:
    answer = ModelAnswered(
        Message("assistant", (Text("?"),)), "stop", "m", guidance=Guidance(again=True)
    )
    state = RUNNING
    for _ in range(state.limits.max_turns):
        assert state.status is Status.RUNNING
        state = step_done(state, StepDone(answer, NOW), NOW).state
    assert state.status is Status.FAILED
    assert state.stop_reason == "max_iterations_exceeded"


@pytest.mark.parametrize("tools", [False, True])
def test_a_stop_ends_the_run_after_its_step(tools: bool) -> None:
    error = {"category": "permanent", "code": "LOOP", "message": "the same call three times"}
    done = _answered(Guidance(stop="dead_loop", error=error), tools=tools)
    assert done.state.status is Status.FAILED
    assert done.state.stop_reason == "dead_loop"
    assert done.state.error == error
    assert done.state.step == 1


def test_a_stop_after_tools_keeps_their_results() -> None:
    done = _results(Guidance((user("enough"),), stop="dead_loop"))
    assert done.state.stop_reason == "dead_loop"
    assert [m.role for m in done.messages] == ["tool", "user"]
    assert done.state.error["code"] == "DEAD_LOOP"


def test_a_hint_after_tools_follows_the_results() -> None:
    done = _results(Guidance((user("try another way"),), memo={"round": 3}))
    assert done.state.status is Status.RUNNING
    assert done.state.messages == 2
    assert done.state.memo["round"] == 3


def test_the_output_may_be_given_in_the_form_asked_for() -> None:
    assert _answered(Guidance(output='{"a":1}')).state.output == '{"a":1}'


def test_a_guard_may_choose_the_next_kind() -> None:
    assert _results(Guidance(next_kind="compact")).state.next_kind == "compact"
    done = _answered(Guidance(next_kind="compact"))
    assert done.state.status is Status.RUNNING
    assert done.state.next_kind == "compact"


def test_a_cancel_wins_over_a_guard() -> None:
    state = RunState(status=Status.RUNNING, claimed=True, started=True, cancel_requested=True)
    answer = ModelAnswered(
        Message("assistant", (Text("?"),)), "stop", "m", guidance=Guidance(stop="dead_loop")
    )
    assert step_done(state, StepDone(answer, NOW), NOW).state.status is Status.CANCELLED


def test_sums_keep_the_first_ruling_and_every_word() -> None:
    one = Guidance((user("a"),), (NOTE,), {"x": 1}, stop="first")
    two = Guidance((user("b"),), (), {"x": 2, "y": None}, again=True, stop="second", output="o")
    total = summed([one, two])
    assert total.stop == "first"
    assert [m.text() for m in total.messages] == ["a", "b"]
    assert total.again
    assert total.output == "o"
    assert remembered({"y": 3, "z": 4}, total) == {"x": 2, "z": 4}


def test_the_message_with_the_calls_is_the_proposal() -> None:
    done = _answered(NOTHING, tools=True)
    assert done.proposed
    assert done.proposal.tool_uses()[0].name == "look"
