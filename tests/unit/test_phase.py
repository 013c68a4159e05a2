"""What is shown: turn states, phases and the shown status."""

from __future__ import annotations

import pytest

from harness_common.core.phase import phase, shown_status, turn_state
from harness_common.core.run import TERMINAL, RunState, Status


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        ("queued", "model", "queued"),
        ("running", "model", "sampling"),
        ("running", "tools", "executing_tools"),
        ("running", "compact", "compacting"),
        ("running", "a new kind", "executing_tools"),
        ("delayed", "model", "preparing"),
        ("paused", "tools", "preparing"),
        ("waiting_approval", "tools", "executing_tools"),
        ("waiting_input", "tools", "executing_tools"),
        ("waiting_tool", "tools", "executing_tools"),
        ("waiting_children", "tools", "executing_tools"),
        ("succeeded", "model", "completed"),
        ("failed", "model", "failed"),
        ("cancelled", "model", "aborted"),
    ],
)
def test_turn_state(status, kind, expected):
    assert turn_state(RunState(status=Status(status), next_kind=kind)) == expected


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (RunState(), "IDLE"),
        (RunState(status=Status.RUNNING, started=True), "PLANNING"),
        (RunState(status=Status.RUNNING, started=True, turn=1, next_kind="tools"), "ACTIONING"),
        (RunState(status=Status.RUNNING, started=True, turn=1), "OBSERVING"),
        (RunState(status=Status.DELAYED, started=True, turn=1, failures=1), "REFINING"),
        (RunState(status=Status.SUCCEEDED, started=True, failures=1), "RESPONDING"),
        (RunState(status=Status.FAILED, started=True), "TERMINATED"),
        (RunState(status=Status.CANCELLED), "TERMINATED"),
    ],
)
def test_phase(state, expected):
    assert phase(state) == expected


@pytest.mark.parametrize("status", Status)
def test_every_status_is_shown(status):
    assert turn_state(RunState(status=status))
    assert (phase(RunState(status=status)) in {"RESPONDING", "TERMINATED"}) == (status in TERMINAL)
    asked = shown_status(RunState(status=status, cancel_requested=True))
    assert asked == ("cancelling" if status is Status.RUNNING else str(status))
    assert shown_status(RunState(status=status)) == str(status)
