"""When a run ends besides with the model's final answer: a part of an agent's definition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import re2
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness_common.core.stop_when import Condition, Kind

_OPTIONS: Final = re2.Options()
_OPTIONS.log_errors = False
_KINDS: Final[tuple[Kind, ...]] = ("text", "tool", "tool_calls", "tokens", "cost_usd")
_GOALS: Final = frozenset({"text", "tool"})
"""What is meant to be reached; the others are amounts that are not to be used up."""


def check_pattern(pattern: str) -> str:
    """Refuse a regular expression that could not be used in linear time."""
    compile_pattern(pattern)
    return pattern


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a pattern that takes linear time over any text; raises `ValueError`. What comes back
    is RE2's, which is used like one of `re`; it keeps the last 128 (tenants write them).
    """
    try:
        compiled: re.Pattern[str] = re2.compile(pattern, _OPTIONS)
        return compiled
    except re2.error as problem:
        why = problem.args[0] if problem.args else problem
        said = why.decode(errors="replace") if isinstance(why, bytes) else why
        raise ValueError(
            f"{pattern!r} is no regular expression of RE2 ({said}); look-around and "
            "back-references do not exist there"
        ) from problem


Pattern = Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(check_pattern)]


class StopWhen(BaseModel):
    """One condition: exactly one of its first five fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: Pattern | None = None
    """A regular expression (RE2) that an answer matches somewhere."""
    tool: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """A tool that has worked; its result is the run's output."""
    tool_calls: Annotated[int, Field(ge=1)] | None = None
    tokens: Annotated[int, Field(ge=1)] | None = None
    cost_usd: Annotated[float, Field(gt=0)] | None = None
    outcome: Literal["succeeded", "failed"] | None = None
    """How the run ends; None: succeeded by `text` and `tool`, failed by the amounts."""

    @model_validator(mode="after")
    def _one(self) -> StopWhen:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise ValueError(
                f"a condition has exactly one of {', '.join(_KINDS)}, not "
                f"{' and '.join(given) or 'none'}"
            )
        return self

    def condition(self) -> Condition:
        """Return what the pure rules go by."""
        (kind,) = [kind for kind in _KINDS if getattr(self, kind) is not None]
        matches = None
        if self.text is not None:
            pattern = compile_pattern(self.text)

            def matches(text: str) -> bool:
                return pattern.search(text) is not None

        outcome = self.outcome or ("succeeded" if kind in _GOALS else "failed")
        return Condition(kind, getattr(self, kind), outcome == "succeeded", matches)


def conditions(declared: Sequence[StopWhen]) -> list[Condition]:
    """Return the conditions of an agent as the pure rules go by them."""
    return [one.condition() for one in declared]
