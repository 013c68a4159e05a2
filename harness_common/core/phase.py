"""What is shown but not stored: turn states and phases, a pure function of status, step kind and
last failure.
"""

from __future__ import annotations

from typing import Final

from harness_common.core.run import RunState, Status
from harness_common.core.step import WITHOUT_CALLS

_TURN: Final = {
    Status.QUEUED: "queued",
    Status.DELAYED: "preparing",
    Status.PAUSED: "preparing",
    Status.WAITING_APPROVAL: "executing_tools",
    Status.WAITING_INPUT: "executing_tools",
    Status.WAITING_TOOL: "executing_tools",
    Status.WAITING_CHILDREN: "executing_tools",
    Status.SUCCEEDED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "aborted",
}
_KIND_TURN: Final = {"model": "sampling", "tools": "executing_tools", "compact": "compacting"}


def turn_state(state: RunState) -> str:
    """Name the turn state: queued, preparing, sampling, executing_tools, compacting, completed,
    aborted or failed.
    """
    if state.status is Status.RUNNING:
        return _KIND_TURN.get(state.next_kind, "executing_tools")
    return _TURN[state.status]


def phase(state: RunState) -> str:
    """Name the phase: IDLE, PLANNING, ACTIONING, OBSERVING, REFINING, RESPONDING or TERMINATED."""
    if state.status is Status.SUCCEEDED:
        return "RESPONDING"
    if state.status in {Status.FAILED, Status.CANCELLED}:
        return "TERMINATED"
    if not state.started:
        return "IDLE"
    if state.failures:
        return "REFINING"
    if state.next_kind not in WITHOUT_CALLS:
        return "ACTIONING"
    return "PLANNING" if state.turn == 0 else "OBSERVING"


def shown_status(state: RunState) -> str:
    """Name the status as people see it: `cancelling` while a running run is asked to stop."""
    return shown(state.status, state.cancel_requested)


def shown(status: Status, cancel_requested: bool) -> str:
    """Do what `shown_status` does without a whole state."""
    return "cancelling" if status is Status.RUNNING and cancel_requested else str(status)
