"""Messages of a conversation as typed blocks, and their exact JSON form.

A message may mix text, tool uses and tool results. The JSON of a message is stored as text, so that
what was said comes back byte for byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final, Literal, assert_never

Json = Any
"""A JSON value: the one place where `Any` is meant."""

Role = Literal["system", "user", "assistant", "tool"]
Trust = Literal["trusted", "untrusted"]


@dataclass(frozen=True, slots=True)
class Text:
    """Words for a person or the model."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The model asks for a tool. `id` is the provider's own and may repeat between answers."""

    id: str
    name: str
    input: Json
    raw: str | None = None
    """The argument text exactly as the provider sent it, when it was not a JSON object."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one `ToolUse`; every end state of a call maps to exactly one."""

    tool_use_id: str
    content: str
    is_error: bool = False
    error_type: str | None = None


Block = Text | ToolUse | ToolResult


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of speech; `trust` says whether it came from outside the tenant's control."""

    role: Role
    content: tuple[Block, ...]
    trust: Trust = "trusted"
    extra: Json = field(default=None)
    """Provider material that must be sent back unchanged (reasoning signatures); None for most."""

    def text(self) -> str:
        """Join the text blocks."""
        return "".join(b.text for b in self.content if isinstance(b, Text))

    def tool_uses(self) -> tuple[ToolUse, ...]:
        """List the tool calls asked for, in order."""
        return tuple(b for b in self.content if isinstance(b, ToolUse))

    def has_tool_uses(self) -> bool:
        """Tell whether any tool is asked for."""
        return any(isinstance(b, ToolUse) for b in self.content)


def message_chars(message: Message) -> int:
    """Estimate how much a message takes in memory, in characters."""
    total = 0
    for block in message.content:
        match block:
            case Text(text):
                total += len(text)
            case ToolUse(_, _, arguments, raw):
                total += len(str(arguments)) + len(raw or "")
            case ToolResult(_, content):
                total += len(content)
    return total


def user(text: str, trust: Trust = "trusted") -> Message:
    """Build a user message of one text block."""
    return Message("user", (Text(text),), trust)


def block_to_json(block: Block) -> Json:
    """Write one block as a JSON object with a `type`."""
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case ToolUse(id, name, input, raw):
            out = {"type": "tool_use", "id": id, "name": name, "input": input}
            return out if raw is None else {**out, "raw": raw}
        case ToolResult(tool_use_id, content, is_error, error_type):
            out = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content}
            if is_error:
                out |= {"is_error": True, "error_type": error_type}
            return out
    assert_never(block)


def block_from_json(data: Json) -> Block:
    """Read what `block_to_json` wrote; raises `ValueError` on an unknown type."""
    match data["type"]:
        case "text":
            return Text(data["text"])
        case "tool_use":
            return ToolUse(data["id"], data["name"], data["input"], data.get("raw"))
        case "tool_result":
            return ToolResult(
                data["tool_use_id"],
                data["content"],
                data.get("is_error", False),
                data.get("error_type"),
            )
        case other:
            raise ValueError(f"unknown block type {other!r}")


def to_json(message: Message) -> Json:
    """Write a message as a JSON object."""
    out: dict[str, Json] = {
        "role": message.role,
        "content": [block_to_json(b) for b in message.content],
        "trust": message.trust,
    }
    if message.extra is not None:
        out["extra"] = message.extra
    return out


def from_json(data: Json) -> Message:
    """Read what `to_json` wrote."""
    return Message(
        data["role"],
        tuple(block_from_json(b) for b in data["content"]),
        data.get("trust", "trusted"),
        data.get("extra"),
    )


_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(message: Message) -> str:
    """Write a message as compact JSON text, the stored form."""
    return _ENCODE(to_json(message))


def loads(text: str) -> Message:
    """Read the stored form."""
    return from_json(json.loads(text))
