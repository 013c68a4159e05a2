"""What the guards of a step have to say besides its result: hints for the model, events, the end.

Contracts, loop guards, guardrails and the context budget all watch a step from the worker; each of
them says what it found as one of these values, and `core.step_rules` acts on their sum. A guard
never changes a run by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from harness_common.core.events import Event
from harness_common.core.message import Json, Message


@dataclass(frozen=True, slots=True)
class Guidance:
    """One guard's ruling on a step."""

    messages: tuple[Message, ...] = ()
    """What the model is told: written after the step's own message, in the same commit. None after
    an answer that asks for tools: results come next there, and the hint goes with them.
    """
    events: tuple[Event, ...] = ()
    memo: Mapping[str, Json] = field(default_factory=dict)
    """What the run remembers for the guard's next look; None takes a key away."""
    again: bool = False
    """A final answer does not count as one: the model is asked once more (its caps hold)."""
    stop: str | None = None
    """The stop reason of a run that ends here, after the step is recorded."""
    error: Mapping[str, Json] | None = None
    """Why, for the run's `error`; None words it from the stop reason."""
    output: str | None = None
    """A final answer's text in the form that was asked for; None keeps it as it was said."""
    next_kind: str | None = None
    """The kind of the next step, in place of the usual one."""
    succeeds: bool = False
    """The run that ends here has reached what it was for: `output` is its result."""


NOTHING: Final = Guidance()


def summed(found: Iterable[Guidance]) -> Guidance:
    """Join what several guards say, in their order: the first stop, output and next kind count."""
    total = NOTHING
    for one in found:
        total = Guidance(
            total.messages + one.messages,
            total.events + one.events,
            {**total.memo, **one.memo},
            total.again or one.again,
            total.stop or one.stop,
            total.error if total.stop else one.error or total.error,
            one.output if total.output is None else total.output,
            total.next_kind or one.next_kind,
            total.succeeds if total.stop else one.succeeds,
        )
    return total


def remembered(memo: Mapping[str, Json], guidance: Guidance) -> Mapping[str, Json]:
    """Return the memo with what the guards want to remember."""
    if not guidance.memo:
        return memo
    return {k: v for k, v in {**memo, **guidance.memo}.items() if v is not None}
