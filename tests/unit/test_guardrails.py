"""Personal data by its form, the rules of guardrails, and conditions that end a run."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.guardrails import Guardrails
from harness_common.contracts.stop_when import StopWhen, conditions
from harness_common.core import stop_when
from harness_common.core.events import GUARDRAIL_BLOCKED
from harness_common.core.guardrail import ASKED_AGAIN, Finding, blocked, on_output
from harness_common.core.inputs import StepDone, StepFailed
from harness_common.core.message import Message, Text, ToolUse
from harness_common.core.pii import find, masked
from harness_common.core.retry import classify
from harness_common.core.run import RunState, Status
from harness_common.core.step import CallOutcome, ModelAnswered
from harness_common.core.step_rules import step_done, step_failed
from harness_common.core.tool_call import CallStatus
from tests.store.play import WHEN


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("write to ann.weber+x@mail.example.co.uk now", ["email"]),
        ("card 4111 1111 1111 1111, please", ["credit_card"]),
        ("card 4111-1111-1111-1112 is mistyped", []),
        ("order 1234567890123456 shipped", []),
        ("DE89 3704 0044 0532 0130 00", ["iban"]),
        ("DE88370400440532013000 is mistyped", []),
        ("GB29NWBK60161331926819", ["iban"]),
        ("from 192.168.0.17 and 2001:db8::8a2e:370:7334", ["ip", "ip"]),
        ("version 1.2.3 of 2024, at 10:20:30", []),
        ("version 999.1.2.3", []),
        ("call +49 30 901820 or 0049-30-901821", ["phone", "phone"]),
        ("that is 2 + 2, 100 200 300 units", []),
        ("SSN 123-45-6789, not 000-12-3456", ["us_ssn"]),
        ("a@b is no address, nor is @home", []),
    ],
)
def test_personal_data_is_found_by_its_form(text: str, kinds: list[str]) -> None:
    assert [f.kind for f in find(text)] == kinds


def test_what_is_found_is_masked_and_the_rest_stays() -> None:
    text = "Ann (ann@example.com, +49 30 901820) pays with 4111111111111111."
    assert masked(text, find(text)) == "Ann ([email], [phone]) pays with [credit_card]."
    assert masked(text, find(text, ["phone"])).startswith("Ann (ann@example.com, [phone])")


@pytest.mark.parametrize(
    ("rails", "why"),
    [
        ({"input": [{"kind": "deny", "patterns": ["(?<=a)b"]}]}, "no regular expression of RE2"),
        ({"input": [{"kind": "pii", "action": "ask_again"}]}, "cannot ask_again"),
        ({"output": [{"kind": "judge", "agent": "j", "action": "rewrite"}]}, "cannot rewrite"),
        ({"output": [{"kind": "schema", "json_schema": {"type": 7}}]}, "7 is not valid"),
        ({"output": [{"kind": "wish"}]}, "does not match any of the expected tags"),
        ({"output": [{"kind": "max_chars", "limit": "5"}]}, "valid integer"),
    ],
)
def test_rails_that_cannot_be_are_refused(rails: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Guardrails.model_validate(rails)


def test_rails_are_a_part_of_an_agent_that_comes_back_as_it_was() -> None:
    given = {
        "input": [{"kind": "pii", "kinds": ["email"], "action": "rewrite"}],
        "output": [
            {"kind": "deny", "patterns": ["(?i)secret"]},
            {"kind": "schema", "json_schema": {"type": "object"}, "action": "ask_again"},
            {"kind": "max_chars", "limit": 10.0},
        ],
    }
    spec = AgentSpec.model_validate({"guardrails": given})
    assert AgentSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert spec.guardrails.output[2].limit == 10  # type: ignore[union-attr]


FOUND = Finding("deny", "output", "ask_again", "it holds what may not be said")


def test_an_answer_is_asked_for_again_so_often_and_then_blocked() -> None:
    first = on_output(FOUND, 0, 2, 3)
    assert (first.again, first.stop, first.memo[ASKED_AGAIN]) == (True, None, 1)
    last = on_output(FOUND, 2, 2, 3)
    assert (last.again, last.stop) == (False, "guardrail_blocked")
    assert last.error is not None
    assert "refused the answer: it holds what may not be said" in last.error["message"]


def test_a_refused_input_ends_the_run_with_the_reason_and_an_event() -> None:
    state = RunState(status=Status.RUNNING, claimed=True, started=True)
    failure = classify(
        blocked(Finding("pii", "input", "block", "it holds personal data (email)"), 1)
    )
    done = step_failed(state, StepFailed(failure, WHEN), WHEN)
    assert done.state.stop_reason == "guardrail_blocked"
    assert done.state.error["code"] == "GUARDRAIL_BLOCKED"
    (event,) = [e for e in done.events if e.type == GUARDRAIL_BLOCKED]
    assert event.payload["rail"] == "pii"


def test_a_condition_is_one_of_its_kinds() -> None:
    for given in ({}, {"text": "a", "tool": "b"}):
        with pytest.raises(ValidationError, match="exactly one of"):
            StopWhen.model_validate(given)
    with pytest.raises(ValidationError, match="RE2"):
        StopWhen(text="(a")


def _met(outcomes: list[CallOutcome], spent: stop_when.Spent, *given: dict[str, Any]):
    declared = conditions([StopWhen.model_validate(one) for one in given])
    return stop_when.after_tools(declared, outcomes, spent, "so far so good", 4)


NOTHING_SPENT = stop_when.Spent(0, 0, 0.0)


def test_a_tool_that_has_worked_may_end_a_run_with_its_result() -> None:
    ok = CallOutcome(0, "c", "submit", CallStatus.SUCCEEDED, "report 7")
    bad = CallOutcome(0, "c", "submit", CallStatus.FAILED, "no")
    said = _met([ok], NOTHING_SPENT, {"tool": "submit"})
    assert (said.stop, said.succeeds, said.output) == ("stop_condition", True, "report 7")
    assert _met([bad], NOTHING_SPENT, {"tool": "submit"}).stop is None


@pytest.mark.parametrize(
    ("given", "spent"),
    [
        ({"tool_calls": 5}, stop_when.Spent(5, 0, 0)),
        ({"tokens": 100}, stop_when.Spent(0, 100, 0)),
        ({"cost_usd": 0.5}, stop_when.Spent(0, 0, 0.5)),
    ],
)
def test_an_amount_may_end_a_run(given: dict[str, Any], spent: stop_when.Spent) -> None:
    said = _met([], spent, given)
    assert (said.stop, said.succeeds) == ("stop_condition", False)
    assert said.error is not None
    reached = _met([], spent, given | {"outcome": "succeeded"})
    assert (reached.succeeds, reached.output) == (True, "so far so good")
    assert _met([], NOTHING_SPENT, given).stop is None


def test_calls_are_counted_only_for_who_asks() -> None:
    assert _met([], stop_when.Spent(3, 0, 0), {"tool_calls": 5}).memo == {stop_when.CALLS: 3}
    assert _met([], stop_when.Spent(3, 0, 0), {"tokens": 5}).memo == {}


def test_a_met_condition_ends_the_run_as_it_says() -> None:
    said = stop_when.after_answer(conditions([StopWhen(text="(?i)all done")]), "So, ALL DONE.", 1)
    use = ToolUse("c", "look", {})
    answer = ModelAnswered(Message("assistant", (Text("x"), use)), "tool_calls", "m", guidance=said)
    state = RunState(status=Status.RUNNING, claimed=True, started=True)
    done = step_done(state, StepDone(answer, WHEN), WHEN)
    assert (done.state.status, done.state.stop_reason) == (Status.SUCCEEDED, "stop_condition")
    assert done.state.output == "So, ALL DONE."
    assert done.state.error is None
