"""What may enter a run from outside its model: the response of a tool, and an interruption.

Both have one closed form. What has not that form never gets into a run: a response is replaced by
an error that says so, an interruption is refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus
from harness_common.core.values import replace

_STATUS: Final = {
    CallStatus.SUCCEEDED: "ok",
    CallStatus.FAILED: "error",
    CallStatus.REJECTED: "error",
    CallStatus.CANCELLED: "cancelled",
    CallStatus.UNKNOWN: "unknown",
}
BAD_RESPONSE: Final = "BAD_RESULT"


@dataclass(frozen=True, slots=True)
class ToolResponse:
    """How a call ended, as a run takes it in."""

    status: Literal["ok", "error", "cancelled", "unknown"]
    data: str
    error_code: str | None
    cost_ms: float


def tool_response(outcome: CallOutcome) -> ToolResponse:
    """Return a call's end in the form of a response; raises `ValueError` when it has not that."""
    status: Any = _STATUS.get(outcome.status)
    if status is None:
        raise ValueError(f"a call that is {outcome.status} has not ended")
    if not isinstance(outcome.content, str):
        raise ValueError("its data is not text")
    has_none = outcome.error_type is None or not outcome.error_type.strip()
    if status != "unknown" and has_none == (status == "error"):
        raise ValueError("an error has an error code" if status == "error" else "it has an error")
    if not math.isfinite(outcome.duration_ms) or outcome.duration_ms < 0:
        raise ValueError("the time it took is no time")
    return ToolResponse(status, outcome.content, outcome.error_type, outcome.duration_ms)


def conforming(outcome: CallOutcome) -> CallOutcome:
    """Return the outcome, or the error that takes its place when it has not the form."""
    try:
        tool_response(outcome)
    except ValueError as error:
        text = (
            f"Tool {outcome.name} failed ({BAD_RESPONSE}): its response has not the form that it "
            f"must have: {error}. What it changed stands: do not call it again only for its result."
        )
        unknown = outcome.status is CallStatus.UNKNOWN
        status = CallStatus.UNKNOWN if unknown else CallStatus.FAILED
        return replace(
            outcome, status=status, content=text, error_type=BAD_RESPONSE, duration_ms=0.0
        )
    return outcome


class Interrupt(BaseModel):
    """A wish that a run be stopped, paused or told something while one certain step is due."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    interrupt_type: Literal["cancel", "pause", "steer"]
    target_step_id: Annotated[
        str, Field(pattern=r"^run_[0-9a-f]{32}\.[0-9]{1,9}$", examples=["run_" + "0" * 32 + ".3"])
    ]
    """The run and the number of its step that is due; one that is over is not interrupted."""
    text: Annotated[str, Field(max_length=1_000_000)] = ""
    """The reason, or for `steer` the message."""

    @property
    def run_id(self) -> str:
        """Name the run."""
        return self.target_step_id.partition(".")[0]

    @property
    def step(self) -> int:
        """Return the number of the step."""
        return int(self.target_step_id.partition(".")[2])
