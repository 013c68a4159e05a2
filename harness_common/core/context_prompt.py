"""Putting a prompt together: what is fixed in front, the conversation behind it, what is new last.

The order serves the providers' caches: the bytes of one request begin those of the next, until a
compaction. So whatever changes from step to step is never put into the system text: it is said as a
message at the end, once, and stays where it was said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from harness_common.core.context_view import (
    SECTION,
    Shown,
    about_summary,
    is_summary,
    section_of,
)
from harness_common.core.message import Json, Message, Text, ToolResult, Trust
from harness_common.core.tokens import (
    MESSAGE_TOKENS,
    bytes_to_tokens,
    json_bytes,
    message_tokens,
    text_bytes,
    text_tokens,
)

_SECTIONS_SHARE: Final = 0.25
"""The most of a prompt's budget that sections may take."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the prompt that is no message: a skill, a memory, the state of something."""

    name: str
    text: str
    trust: Trust = "trusted"
    priority: int = 0
    """Where not all fit, the highest stay."""
    volatile: bool = False
    """It may differ from step to step: it is said at the end of the conversation, when it has
    changed. What is not trusted is said there too, never in the system text.
    """

    @property
    def in_front(self) -> bool:
        """Tell whether it stands in the system text."""
        return self.trust == "trusted" and not self.volatile


class ToolShape(Protocol):
    """A tool as the model sees it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def description(self) -> str:
        """Its manual."""
        ...

    @property
    def input_schema(self) -> Json:
        """Its arguments."""
        ...


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt, and what it is made of in tokens (estimated, not calibrated)."""

    system: str
    shown: tuple[Shown, ...]
    notes: tuple[Message, ...]
    """Sections that are said for the first time, or anew: they become messages of the run."""
    by: dict[str, int]
    left_out: tuple[Json, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation as it is sent."""
        return tuple(one.message for one in self.shown) + self.notes

    @property
    def tokens(self) -> int:
        """The size of the whole prompt."""
        return sum(self.by.values())

    @property
    def fixed_tokens(self) -> int:
        """What no compaction makes smaller."""
        return self.by.get("system", 0) + self.by.get("tools", 0)


@dataclass(frozen=True, slots=True)
class Assembled:
    """The parts of a prompt, before it is known what fits."""

    system: str
    sections: tuple[Section, ...]
    recent: tuple[Shown, ...]
    tools: tuple[ToolShape, ...] = field(default=())

    def render(self, budget_tokens: int) -> Rendered:
        """Write the prompt. Sections that do not fit their share are left out, lowest priority
        first; messages never are (that is what a compaction is for).
        """
        chosen, left_out = _choose(self.sections, int(budget_tokens * _SECTIONS_SHARE))
        front = [s for s in chosen if s.in_front]
        system = "\n\n".join(t for t in (self.system, *map(_in_front, front)) if t)
        notes = _notes([s for s in chosen if not s.in_front], self.recent)
        by = {"system": text_tokens(system) + (MESSAGE_TOKENS if system else 0)}
        by["tools"] = tools_tokens(self.tools)
        by |= messages_by_kind(self.recent)
        if notes:
            by["notes"] = by.get("notes", 0) + sum(map(message_tokens, notes))
        return Rendered(system, self.recent, notes, {k: v for k, v in by.items() if v}, left_out)


def assemble(
    *,
    system: str,
    recent: Sequence[Shown],
    skill: Sequence[Section] = (),
    memories: Sequence[Section] = (),
    state: Sequence[Section] = (),
    tools: Sequence[ToolShape] = (),
) -> Assembled:
    """Put together what a model is to be shown."""
    return Assembled(system, (*skill, *memories, *state), tuple(recent), tuple(tools))


def tools_tokens(tools: Sequence[ToolShape]) -> int:
    """Estimate the tokens of tool definitions."""
    size = sum(
        text_bytes(t.name) + text_bytes(t.description) + json_bytes(t.input_schema) for t in tools
    )
    return bytes_to_tokens(size) + len(tools) * MESSAGE_TOKENS


def kind_of(one: Shown) -> str:
    """Name what a message is to the reader of a prompt's account."""
    message = one.message
    if is_summary(message):
        return "summary"
    if section_of(message) is not None:
        return "notes"
    if ":" in one.origin:
        return "history"
    if any(isinstance(b, ToolResult) for b in message.content):
        return "results"
    return "answers" if message.role == "assistant" else "said"


def messages_by_kind(shown: Sequence[Shown]) -> dict[str, int]:
    """Count the tokens of messages by kind."""
    by: dict[str, int] = {}
    for one in shown:
        kind = kind_of(one)
        by[kind] = by.get(kind, 0) + message_tokens(one.message)
    return by


def left_out_of(shown: Sequence[Shown]) -> list[Json]:
    """List what the compaction in force has left out, and why."""
    if not shown or not is_summary(shown[0].message):
        return []
    about = about_summary(shown[0].message)
    out: list[Json] = [
        {"what": "messages", "count": about["covers"], "why": about["how"], "step": about["step"]}
    ]
    there = {one.origin for one in shown}
    for place, why in about.get("why", {}).items():
        if place.rpartition(".")[0] in there:
            out.append({"what": f"result {place}", "count": 1, "why": why, "step": about["step"]})
    return out


def _choose(
    sections: Sequence[Section], budget_tokens: int
) -> tuple[tuple[Section, ...], tuple[Json, ...]]:
    """Choose the sections that fit, by priority; they keep the order in which they were given."""
    left = budget_tokens
    chosen: set[int] = set()
    out: list[Json] = []
    for i, section in sorted(enumerate(sections), key=lambda s: (-s[1].priority, s[0])):
        size = text_tokens(section.text) + MESSAGE_TOKENS
        if size <= left:
            left -= size
            chosen.add(i)
        else:
            out.append(
                {"what": f"section {section.name}", "tokens": size, "why": "sections' budget"}
            )
    return tuple(s for i, s in enumerate(sections) if i in chosen), tuple(out)


def _in_front(section: Section) -> str:
    return f"## {section.name}\n{section.text}"


def _notes(sections: Sequence[Section], recent: Sequence[Shown]) -> tuple[Message, ...]:
    """Say sections whose text is not what was last said of them."""
    last: dict[str, str] = {}
    for one in recent:
        if (name := section_of(one.message)) is not None:
            last[name] = one.message.text()
    out = []
    for section in sections:
        text = f"[{section.name}]\n{section.text}"
        if last.get(section.name) != text:
            out.append(Message("user", (Text(text),), section.trust, {SECTION: section.name}))
    return tuple(out)
