"""What a skill is: how to do one kind of work, as data that a tenant versions and runs pin.

A skill joins a prompt, knowledge, tools and a flow. A model sees of each its name and description;
the whole text of those that a request asks for, and of those that are small. The rest it reads with
`skill_read` when it needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.names import Name, ToolName
from harness_common.core.fact import estimated_tokens
from harness_common.core.message import Json

INLINE_TOKENS: Final = 1_000
"""A skill up to this size (by estimate) is shown whole."""
ALL_INLINE_TOKENS: Final = 4_000
"""What skills that nobody asked for may take of a prompt together."""
READ_TOOL: Final = "skill_read"
_GRAPH_TOOL: Final = "spawn_run"
_MAX_CHARS: Final = 400_000


class Knowledge(BaseModel):
    """A document that belongs to a skill: its text, or an artifact of the tenant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: Annotated[str, Field(min_length=1, max_length=200)]
    text: Annotated[str, Field(min_length=1, max_length=100_000)] | None = None
    artifact: Annotated[str, Field(pattern=r"^art_[0-9a-f]{32}$")] | None = None
    """What an artifact holds never changes, so a skill pins it."""

    @model_validator(mode="after")
    def _one_of(self) -> Knowledge:
        if (self.text is None) == (self.artifact is None):
            raise ValueError("knowledge has either a text or an artifact")
        return self


class SkillSpec(BaseModel):
    """One version of a skill."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: Annotated[str, Field(min_length=1, max_length=500)]
    """What it is for and when to use it, in a sentence: a model always sees this."""
    prompt: Annotated[str, Field(max_length=100_000)] = ""
    """How the work is done."""
    knowledge: Annotated[tuple[Knowledge, ...], Field(max_length=50)] = ()
    tools: Annotated[tuple[ToolName, ...], Field(max_length=100)] = ()
    """Tools that a run with the skill has beside its agent's."""
    flow: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2_000)], ...], Field(max_length=50)
    ] = ()
    """What to do, in this order."""
    graph: Name | None = None
    """An agent that does the flow as a graph; it is started with `spawn_run`."""

    @model_validator(mode="after")
    def _complete(self) -> SkillSpec:
        if not (self.prompt.strip() or self.knowledge or self.flow or self.graph):
            raise ValueError("a skill needs a prompt, knowledge, a flow or a graph")
        if len({k.title for k in self.knowledge}) < len(self.knowledge):
            raise ValueError("two documents of a skill cannot have one title")
        chars = sum(len(k.text or "") for k in self.knowledge) + len(self.prompt)
        if chars > _MAX_CHARS:
            raise ValueError(
                f"a skill holds at most {_MAX_CHARS} characters, and this one {chars}: keep large "
                "documents as artifacts"
            )
        return self

    def digest(self) -> str:
        """Return the SHA-256 of the definition, by which an unchanged one is recognised."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def needs(self) -> tuple[str, ...]:
        """List the tools that a run with the skill needs."""
        return (*self.tools, _GRAPH_TOOL) if self.graph else self.tools


@dataclass(frozen=True, slots=True)
class Pin:
    """A skill as a run has pinned it."""

    name: str
    version: int
    active: bool = False
    """Whether the request asked for it, not only the agent."""

    @property
    def ref(self) -> str:
        """Write it as `name@version`."""
        return f"{self.name}@{self.version}"

    def to_json(self) -> Json:
        """Write it as a run keeps it."""
        return {"name": self.name, "version": self.version, "active": self.active}


@dataclass(frozen=True, slots=True)
class PinnedSkill:
    """A pinned skill and what it says."""

    pin: Pin
    spec: SkillSpec

    def whole(self) -> str:
        """Write all that a model has to know, but for documents, which are named."""
        spec, parts = self.spec, [self.spec.prompt.strip()]
        if spec.flow:
            steps = "\n".join(f"{i}. {step}" for i, step in enumerate(spec.flow, 1))
            parts.append(f"Do this in order:\n{steps}")
        if spec.graph:
            parts.append(f"Its flow is the agent {spec.graph!r}: start it with {_GRAPH_TOOL}.")
        if spec.knowledge:
            titles = "\n".join(f"- {k.title}" for k in spec.knowledge)
            parts.append(
                f"Documents, to be read with {READ_TOOL} (name {self.pin.name!r}) when needed:\n"
                f"{titles}"
            )
        return "\n\n".join(filter(None, parts))


def pins_in(overrides: Mapping[str, Json]) -> tuple[Pin, ...]:
    """Read what a run has pinned."""
    return tuple(
        Pin(one["name"], one["version"], bool(one.get("active")))
        for one in overrides.get("skills", ())
    )


def equipped(spec: AgentSpec, skills: Sequence[PinnedSkill]) -> AgentSpec:
    """Return an agent as it is with its run's skills: their tools beside its own, their text after
    its own. The same for every step of a run, so that the prompt's prefix stays cacheable.
    """
    if not skills:
        return spec
    shown = _inline(skills)
    sections = [_section(one, whole=one.pin in shown) for one in skills]
    more = [name for one in skills for name in one.spec.needs()]
    if len(shown) < len(skills) or any(one.spec.knowledge for one in skills):
        more.append(READ_TOOL)
    text = "\n".join(["<skills>", *sections, "</skills>"])
    return spec.model_copy(
        update={
            "tools": _once((*spec.tools, *more)),
            "system": f"{spec.system}\n\n{text}" if spec.system else text,
        }
    )


def _inline(skills: Sequence[PinnedSkill]) -> set[Pin]:
    """Choose the skills whose whole text is shown: those asked for, and small ones while there is
    room.
    """
    shown, left = set(), ALL_INLINE_TOKENS
    for one in skills:
        tokens = estimated_tokens(one.whole())
        if one.pin.active:
            shown.add(one.pin)
        elif tokens <= min(INLINE_TOKENS, left):
            shown.add(one.pin)
            left -= tokens
    return shown


def _section(one: PinnedSkill, *, whole: bool) -> str:
    head = f"## {one.pin.name}\n{' '.join(one.spec.description.split())}"
    if whole:
        return f"{head}\n\n{one.whole()}"
    return f"{head}\nRead it with {READ_TOOL} before you use it."


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
