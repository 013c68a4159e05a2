"""What may be said to an agent and by it: a part of its definition.

The rails of a list are looked at in their order; the first that blocks ends it. What a rail puts in
the place of a text is what the next one sees.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from harness_common.contracts.stop_when import Pattern
from harness_common.contracts.tool_schema import check_tenant_schema
from harness_common.core.errors import Invalid
from harness_common.core.guardrail import Action, Where
from harness_common.core.pii import KINDS, PiiKind


@dataclass(frozen=True, slots=True)
class RailVerdict:
    """What a guardrail function says of a text."""

    ok: bool
    why: str = ""
    text: str | None = None
    """What to put in its place when the rail's action is to rewrite."""


RailFunction = Callable[[str, Where], RailVerdict | Awaitable[RailVerdict]]
"""A guardrail of a package: the text and where it stands. One that rewrites inputs has to give the
same for the same text: it is asked at every step.
"""


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class _Rail(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    action: Action = "block"
    why: Annotated[str, Field(max_length=500)] = ""
    """Told instead of the rail's own words."""


class DenyRail(_Rail):
    """What matches one of the patterns (RE2) may not be said."""

    kind: Literal["deny"]
    patterns: Annotated[tuple[Pattern, ...], Field(strict=False, min_length=1, max_length=200)]


class LengthRail(_Rail):
    """No more than so many characters."""

    kind: Literal["max_chars"]
    limit: Annotated[Whole, Field(ge=1, le=10_000_000)]


class PiiRail(_Rail):
    """Nothing that has the form of personal data."""

    kind: Literal["pii"]
    kinds: Annotated[tuple[PiiKind, ...], Field(strict=False, min_length=1)] = KINDS


def _sound(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        check_tenant_schema("guardrail", {"type": "object", "properties": {"": schema}})
    except Invalid as problem:
        raise ValueError(problem.message) from problem
    return schema


class SchemaRail(_Rail):
    """It is JSON that fits the schema."""

    kind: Literal["schema"]
    json_schema: Annotated[dict[str, Any], AfterValidator(_sound)]

    @model_validator(mode="after")
    def _no_rewrite(self) -> SchemaRail:
        if self.action == "rewrite":
            raise ValueError("a schema rail cannot rewrite; use block or ask_again")
        return self


class PluginRail(_Rail):
    """A function of a package that is installed on the workers says."""

    kind: Literal["plugin"]
    name: Annotated[str, Field(min_length=1, max_length=100)]


class JudgeRail(_Rail):
    """Another agent of the tenant says; its tools are not used."""

    kind: Literal["judge"]
    agent: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    question: Annotated[str, Field(max_length=10_000)] = ""
    """What it is to look at, besides what its own system prompt says."""

    @model_validator(mode="after")
    def _no_rewrite(self) -> JudgeRail:
        if self.action == "rewrite":
            raise ValueError("a judge cannot rewrite; use block or ask_again")
        return self


Rail = Annotated[
    DenyRail | LengthRail | PiiRail | SchemaRail | PluginRail | JudgeRail,
    Field(discriminator="kind"),
]
Rails = Annotated[tuple[Rail, ...], Field(strict=False, max_length=20)]


class Guardrails(BaseModel):
    """What is looked at before the model is asked, and before its final answer is given."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    input: Rails = ()
    output: Rails = ()
    ask_again_max: Annotated[Whole, Field(ge=1, le=10)] = 2
    """How often a run asks for another answer; then the rail blocks."""

    @model_validator(mode="after")
    def _input_is_said(self) -> Guardrails:
        if any(rail.action == "ask_again" for rail in self.input):
            raise ValueError("an input rail cannot ask_again; use block or rewrite")
        return self
