"""Responses of tools and interruptions: what has not the form does not get into a run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ValidationError

from harness_common.contracts.flow import Interrupt, conforming, tool_response
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus

FINE = CallOutcome(0, "c", "look", CallStatus.SUCCEEDED, "it is there", duration_ms=3.5)
RUN = "run_" + "0" * 32


def test_a_response_has_status_data_error_code_and_cost():
    response = tool_response(FINE)
    assert (response.status, response.data, response.error_code, response.cost_ms) == (
        "ok", "it is there", None, 3.5,
    )  # fmt: skip
    failed = replace(FINE, status=CallStatus.REJECTED, error_type="ARGUMENTS_INVALID")
    assert tool_response(failed).status == "error"
    assert tool_response(failed).error_code == "ARGUMENTS_INVALID"
    assert conforming(FINE) is FINE
    assert conforming(failed) is failed


@pytest.mark.parametrize(
    "wrong",
    [
        {"status": CallStatus.FAILED},
        {"status": CallStatus.FAILED, "error_type": " "},
        {"error_type": "TIMEOUT"},
        {"content": {"not": "text"}},
        {"content": b"bytes"},
        {"duration_ms": -1.0},
        {"duration_ms": float("nan")},
        {"status": CallStatus.RUNNING},
    ],
)
def test_another_form_never_gets_into_the_run(wrong):
    bad = replace(FINE, **wrong)
    with pytest.raises(ValueError, match=r"."):
        tool_response(bad)
    instead = conforming(bad)
    assert (instead.status, instead.error_type) == (CallStatus.FAILED, "BAD_RESULT")
    assert "has not the form" in instead.content
    assert tool_response(instead).status == "error"


def test_what_is_unknown_stays_unknown():
    bad = replace(FINE, status=CallStatus.UNKNOWN, duration_ms=-1.0)
    assert conforming(bad).status is CallStatus.UNKNOWN


def test_an_interruption_names_its_step():
    one = Interrupt(interrupt_type="pause", target_step_id=f"{RUN}.3")
    assert (one.run_id, one.step) == (RUN, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"interrupt_type": "kill"}, {"target_step_id": "3"}, {"target_step_id": f"{RUN}.x"},
        {"target_step_id": 3}, {"text": 3}, {"more": 1},
    ],
)  # fmt: skip
def test_an_interruption_of_another_form_is_refused(wrong):
    with pytest.raises(ValidationError):
        Interrupt(**{"interrupt_type": "pause", "target_step_id": f"{RUN}.3", **wrong})
