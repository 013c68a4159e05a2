"""Skills on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from harness_api.schemas.base import Input, Output, Time, WholeNumbers
from harness_common.contracts.names import Name, ToolName
from harness_common.contracts.skill import Knowledge, SkillSpec


class KnowledgeInput(WholeNumbers, Knowledge):
    """A document that belongs to a skill."""


class SkillSpecInput(WholeNumbers, SkillSpec):
    """The definition of a skill. The same fields as inside, with strict types."""

    knowledge: Annotated[tuple[KnowledgeInput, ...], Field(strict=False, max_length=50)] = ()
    tools: Annotated[tuple[ToolName, ...], Field(strict=False, max_length=100)] = ()
    flow: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2_000)], ...],
        Field(strict=False, max_length=50),
    ] = ()

    def plain(self) -> SkillSpec:
        """Return the definition as everybody else knows it."""
        return SkillSpec.model_validate(self.model_dump())


class SkillPut(Input):
    """A skill by name; a changed definition becomes its next version."""

    name: Name
    spec: SkillSpecInput


class SkillView(Output):
    """One version of a skill."""

    id: str
    name: str
    version: int
    spec: dict[str, Any]
    digest: str
    created_at: Time
    created_by: str


class SkillPutView(SkillView):
    """What was put, and what could not be checked."""

    warnings: list[str]
