"""What follows from a turn of another framework's object."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from harness_common.commands.fork import ForkRun
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.request_options import ClientTool, RequestOptions
from harness_common.core import events as ev
from harness_common.core.budget import Limits
from harness_common.core.errors import Invalid
from harness_common.core.inputs import StepDone
from harness_common.core.message import Message, Text
from harness_common.core.rules import advance
from harness_common.core.run import RunState, Status
from harness_common.core.step import CallOutcome, ForeignStepped
from harness_common.core.tool_call import CallStatus

NOW = datetime(2025, 1, 1, tzinfo=UTC)
CALL = CallOutcome(0, "k", "note", CallStatus.SUCCEEDED, "x", trust="untrusted", cost_usd=0.5)


def running(**more) -> RunState:
    given = {"limits": Limits(max_turns=3), **more}
    return RunState(Status.RUNNING, 7, 3, "langgraph", claimed=True, started=True, **given)


def stepped(**more) -> ForeignStepped:
    return ForeignStepped("langgraph", {"foreign": {"head": "h"}}, **more)


def test_it_goes_on_with_what_was_saved():
    done = advance(running(), [StepDone(stepped(outcomes=(CALL,), input_tokens=2), NOW)], NOW)
    state = done.state
    assert (state.status, state.step, state.turn, state.next_kind) == (
        Status.RUNNING, 4, 1, "langgraph",
    )  # fmt: skip
    assert state.memo["foreign"] == {"head": "h"}
    assert (state.cost_usd, state.input_tokens) == (0.5, 2)
    assert done.outcomes == (CALL,)
    assert [e.type for e in done.events] == [ev.STEP_STARTED, ev.TOOL_COMPLETED, ev.STEP_COMPLETED]
    assert "untrusted" in str(state.memo), "what the calls touched is not forgotten"


def test_an_output_ends_it():
    said = Message("assistant", (Text("done"),))
    done = advance(running(), [StepDone(stepped(output="done", messages=(said,)), NOW)], NOW)
    assert (done.state.status, done.state.output) == (Status.SUCCEEDED, "done")
    assert done.messages == (said,)
    assert done.state.messages == 1


def test_a_cancel_wins_and_keeps_the_step():
    state = running(cancel_requested=True)
    done = advance(state, [StepDone(stepped(output="done", outcomes=(CALL,)), NOW)], NOW)
    assert (done.state.status, done.state.step) == (Status.CANCELLED, 4)
    assert done.outcomes == (CALL,)


def test_a_cap_on_turns():
    done = advance(running(turn=2), [StepDone(stepped(), NOW)], NOW)
    assert done.state.stop_reason == "max_iterations_exceeded"


def test_what_a_request_changes_of_its_agent():
    tool = ClientTool(name="add")
    options = RequestOptions(
        instructions="Be brief.", tools=(tool,), temperature=0.5, max_output_tokens=10
    )
    spec = AgentSpec(system="You add.", tools=("look",), max_output_tokens=5)
    changed = spec.with_overrides({"request": options.model_dump(mode="json")})
    assert changed.system == "You add.\n\nBe brief."
    assert changed.tools == ("look", "add")
    assert (changed.temperature, changed.max_output_tokens) == (0.5, 5), "it only narrows"
    assert spec.with_overrides({}) is spec
    with pytest.raises(Invalid, match="look"):
        RequestOptions(tools=(ClientTool(name="look"),)).check(spec.tools)
    with pytest.raises(Invalid, match="same name"):
        RequestOptions(tools=(tool, tool)).check(())
    with pytest.raises(Invalid):
        RequestOptions(tools=(ClientTool(name="x", parameters={"type": "string"}),)).check(())
    assert ForkRun().overrides(_source({"request": {}})) == {"request": {}}


def _source(overrides):
    return SimpleNamespace(overrides=overrides)
