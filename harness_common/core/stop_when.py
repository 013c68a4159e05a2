"""Conditions that an agent declares for the end of its runs, besides a final answer. Pure.

Looked at after each answer that asks for tools and after each round of calls; the first that is met
ends the run with the stop reason `stop_condition`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from harness_common.core import events as ev
from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome
from harness_common.core.stop_reasons import StopReason
from harness_common.core.tool_call import CallStatus

CALLS: Final = "tool_calls"
"""The key of `RunState.memo`: how many calls a run has made whose agent counts them."""

Kind = Literal["text", "tool", "tool_calls", "tokens", "cost_usd"]


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `shown` is it as people wrote it."""

    kind: Kind
    value: str | float
    succeeds: bool
    matches: Callable[[str], bool] | None = None
    """Of `text`: whether a text is meant."""

    @property
    def shown(self) -> str:
        """Write it for people."""
        return f"{self.kind} {self.value}"


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used when a round of calls has ended."""

    tool_calls: int
    tokens: int
    cost_usd: float


def after_answer(conditions: Sequence[Condition], text: str, step: int) -> Guidance:
    """Rule on an answer that would go on: by what it says."""
    for one in conditions:
        if one.matches is not None and one.matches(text):
            return _met(one, step, text)
    return NOTHING


def after_tools(
    conditions: Sequence[Condition],
    outcomes: Sequence[CallOutcome],
    spent: Spent,
    last_text: str,
    step: int,
) -> Guidance:
    """Rule on a round of calls: by the tools that worked, and by what has been used."""
    counted: dict[str, Json] = {}
    if any(one.kind == "tool_calls" for one in conditions):
        counted[CALLS] = spent.tool_calls
    for one in conditions:
        if one.kind == "tool":
            for outcome in outcomes:
                if outcome.name == one.value and outcome.status is CallStatus.SUCCEEDED:
                    return _met(one, step, outcome.content, counted)
        elif one.kind != "text" and getattr(spent, one.kind) >= one.value:
            return _met(one, step, last_text, counted)
    return Guidance(memo=counted) if counted else NOTHING


def _met(one: Condition, step: int, output: str, memo: dict[str, Json] | None = None) -> Guidance:
    event = Event(ev.RUN_CONDITION_MET, {"condition": one.kind, "value": one.value}, step)
    if one.succeeds:
        return Guidance(
            (), (event,), memo or {}, stop=StopReason.STOP_CONDITION, output=output, succeeds=True
        )
    error = {
        "category": "permanent",
        "code": StopReason.STOP_CONDITION.upper(),
        "message": f"the agent's stop_when ended it: {one.shown}",
    }
    return Guidance((), (event,), memo or {}, stop=StopReason.STOP_CONDITION, error=error)
