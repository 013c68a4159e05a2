"""What a guardrail says of a text, and the ones that need nothing but the text. Pure.

A rail looks at what the user said (`input`) or at a final answer (`output`). It lets the text pass,
puts another in its place, asks the model for another answer, or blocks: the run ends with the stop
reason `guardrail_blocked`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from harness_common.core import events as ev
from harness_common.core.errors import Permanent
from harness_common.core.events import Event
from harness_common.core.guidance import Guidance
from harness_common.core.hints import hint
from harness_common.core.message import Json
from harness_common.core.pii import PiiKind, find, masked
from harness_common.core.stop_reasons import StopReason

Action = Literal["block", "rewrite", "ask_again"]
Where = Literal["input", "output"]
ASKED_AGAIN: Final = "rail_asked"
"""The key of `RunState.memo`: how often guardrails have asked for another answer."""
REFUSED_FROM: Final = "refused_from"
"""The key of `RunState.memo`: the number of the message that a guardrail refused. Later runs of the
session are shown nothing that users said from there on (`history.sql` reads it).
"""
WITHHELD: Final = "[This answer was withheld by a guardrail.]"
NOT_SHOWN: Final = "[This message was withheld by a guardrail.]"


class GuardrailBlocked(Permanent):
    """A guardrail refused what was said."""

    code = "GUARDRAIL_BLOCKED"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rail does not let a text pass."""

    rail: str
    """Its kind, and its name if it has one."""
    where: Where
    action: Action
    why: str
    """In words that hold nothing of the text."""
    text: str | None = None
    """What is to stand in its place, when the action is to rewrite."""

    def to_json(self) -> dict[str, Json]:
        """Write it for an event or an error; without the text."""
        return {"rail": self.rail, "where": self.where, "action": self.action, "why": self.why}


def blocked(
    finding: Finding, message: int, spent: Mapping[str, Json] | None = None
) -> GuardrailBlocked:
    """Return the error that ends the run before its model is asked with this message of it; `spent`
    is what judges have cost until then (`input_tokens`, `output_tokens`, `cost_usd`).
    """
    more: dict[str, Json] = {"spent": dict(spent)} if spent else {}
    return GuardrailBlocked(explained(finding), **finding.to_json(), message_n=message, **more)


def refused_from(code: str, detail: Json) -> dict[str, Json]:
    """Return what a run remembers of the failure that ends it: what later runs are not shown."""
    number = detail.get("message_n") if isinstance(detail, Mapping) else None
    return {} if code != GuardrailBlocked.code or number is None else {REFUSED_FROM: number}


def explained(finding: Finding) -> str:
    """Say what was refused and why."""
    what = "input" if finding.where == "input" else "answer"
    return f"the agent's guardrail {finding.rail} refused the {what}: {finding.why}"


def on_output(finding: Finding, times_asked: int, most: int, step: int) -> Guidance:
    """Rule on a final answer that a rail does not let pass; asking again is done `most` times."""
    told = finding.to_json()
    if finding.action == "rewrite":
        return Guidance((), (Event(ev.GUARDRAIL_REWROTE, told, step),))
    if finding.action == "ask_again" and times_asked < most:
        said = hint(
            f"Your answer may not be given as it is: {finding.why}. Give another one that holds to "
            "this; do not mention this note."
        )
        event = Event(ev.GUARDRAIL_ASKED_AGAIN, told | {"times": times_asked + 1}, step)
        return Guidance((said,), (event,), {ASKED_AGAIN: times_asked + 1}, again=True)
    error = {
        "category": "permanent",
        "code": GuardrailBlocked.code,
        "message": explained(finding),
        "detail": told,
    }
    event = Event(ev.GUARDRAIL_BLOCKED, told, step)
    return Guidance((), (event,), stop=StopReason.GUARDRAIL_BLOCKED, error=error)


def personal(text: str, kinds: Sequence[PiiKind]) -> tuple[str, list[str]]:
    """Return the text without what is personal in it, and the kinds that were found."""
    found = find(text, kinds)
    return masked(text, found), sorted({one.kind for one in found})
