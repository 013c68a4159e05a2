"""What becomes of a model that keeps asking for what it may not have.

Answers are counted, not calls: five denied calls in one answer are one mistake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core import events as ev
from harness_common.core.events import Event
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome
from harness_common.core.stop_reasons import StopReason
from harness_common.core.tool_call import CallStatus
from harness_common.core.values import replace

DENIED: Final = "denied"
"""The key of `RunState.memo`: how often in a row each tool was denied."""
DENIALS: Final = frozenset({"PERMISSION_DENIED", "APPROVAL_DENIED"})
"""The error types of a call that was refused by policy, or by a person whom policy asked."""
STOP_AFTER: Final = 3
END_AFTER: Final = STOP_AFTER + 2


@dataclass(frozen=True, slots=True)
class Counted:
    """The outcomes of a step, worded for the model, and what they mean for the run."""

    memo: Mapping[str, Json]
    outcomes: tuple[CallOutcome, ...]
    events: tuple[Event, ...] = ()
    over: str | None = None
    """The stop reason of a run whose model does not listen."""


def is_denied(outcome: CallOutcome) -> bool:
    """Tell whether a call was refused rather than tried."""
    return outcome.status is CallStatus.REJECTED and outcome.error_type in DENIALS


def count_denials(memo: Mapping[str, Json], outcomes: Sequence[CallOutcome], step: int) -> Counted:
    """Count the denials of each tool in a row: at the third the model is told to stop, two later
    the run ends. A call of the tool that was not denied begins the count anew.
    """
    before: Mapping[str, int] = memo.get(DENIED, {})
    denied = {o.name for o in outcomes if is_denied(o)} - {
        o.name for o in outcomes if not is_denied(o)
    }
    asked = {o.name for o in outcomes}
    after = {name: n for name, n in before.items() if name not in asked}
    after |= {name: before.get(name, 0) + 1 for name in sorted(denied)}
    if after == before:
        return Counted(memo, tuple(outcomes))
    told = tuple(
        _told(o, after[o.name]) if is_denied(o) and after.get(o.name, 0) >= STOP_AFTER else o
        for o in outcomes
    )
    events = tuple(
        Event(ev.TOOL_DENIED_REPEATEDLY, {"tool": name, "times": after[name]}, step)
        for name in sorted(denied)
        if after[name] >= STOP_AFTER
    )
    kept = {k: v for k, v in memo.items() if k != DENIED} | ({DENIED: after} if after else {})
    over = StopReason.DENIED_REPEATEDLY if any(after[n] >= END_AFTER for n in denied) else None
    return Counted(kept, told, events, over)


def _told(outcome: CallOutcome, times: int) -> CallOutcome:
    left = END_AFTER - times
    ends = (
        f"The run ends after {left} more such call{'s' if left > 1 else ''}."
        if left > 0
        else "The run ends now."
    )
    text = (
        f"{outcome.content}\nStop trying: {outcome.name} was denied {times} times in a row, and "
        "asking again does not change that. Do without it, or answer that you may not do it. "
        f"{ends}"
    )
    return replace(outcome, content=text)
