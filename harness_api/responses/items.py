"""Items of the Responses face: what clients send, and what a run's record shows. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harness_api.responses.ids import CallRef, read_call
from harness_common.core.errors import Invalid
from harness_common.core.message import (
    Json,
    Message,
    Role,
    Text,
    ToolResult,
    ToolUse,
    message_chars,
)

Item = dict[str, Any]
MAX_CHARS: Final = 1_000_000
_ROLES: Final[Mapping[str, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
_TEXT_PARTS: Final = frozenset({"input_text", "output_text", "text"})
_OURS: Final = frozenset({"mcp_call", "reasoning", "mcp_list_tools"})
"""Items that a client sends back as it got them, and that a run needs no more."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the input holds."""

    messages: tuple[Message, ...] = ()
    outputs: Mapping[str, str] = field(default_factory=dict)
    """Results of calls by call id, in the order given."""
    after_outputs: str | None = None
    """The text of the user's messages behind the last result."""
    ends_with_output: bool = False

    def calls(self) -> dict[CallRef, str]:
        """Return the results of calls that are ours."""
        found = ((read_call(call_id), text) for call_id, text in self.outputs.items())
        return {ref: text for ref, text in found if ref is not None}

    def split(self) -> tuple[tuple[Message, ...], str]:
        """Return the conversation before the last message of the user, and that message's text.

        Raises `Invalid` when the last one is not the user's.
        """
        last = self.messages[-1] if self.messages else None
        if last is None or last.role != "user" or not last.text().strip():
            raise Invalid(
                "input must end with text of the user that is not blank, "
                "or with the outputs of calls that a run waits for",
                field="input",
            )
        return self.messages[:-1], last.text()


def read_input(given: str | Sequence[Item]) -> Said:
    """Read the `input` of a request; raises `Invalid` that names the item."""
    if isinstance(given, str):
        said = Said((Message("user", (Text(given),)),))
    else:
        said = _read_items(given)
    chars = sum(message_chars(m) for m in said.messages)
    if chars > MAX_CHARS:
        raise Invalid(
            f"input has {chars} characters, more than {MAX_CHARS}; send less",
            field="input",
            limit=MAX_CHARS,
        )
    return said


def _read_items(items: Sequence[Item]) -> Said:
    messages: list[Message] = []
    outputs: dict[str, str] = {}
    behind: list[str] = []
    is_output = False
    for n, item in enumerate(items):
        kind = item.get("type", "message")
        is_output = kind == "function_call_output"
        if is_output:
            call_id, text = _text(item, n, "call_id"), _output(item.get("output"), n)
            outputs[call_id], behind = text, []
            messages.append(Message("tool", (ToolResult(call_id, text),)))
        elif kind == "function_call":
            messages.append(Message("assistant", (_use(item, n),)))
        elif kind == "message":
            messages.append(message := _message(item, n))
            behind += [message.text()] if message.role == "user" else []
        elif kind not in _OURS:
            raise Invalid(
                f"input[{n}] has the type {str(kind)[:60]!r}, which runs do not take; "
                "send message, function_call and function_call_output items",
                field=f"input[{n}].type",
                value=str(kind)[:60],
            )
    said_after = "\n\n".join(behind) if outputs and behind else None
    return Said(tuple(_joined(messages)), outputs, said_after, is_output)


def _joined(messages: Sequence[Message]) -> list[Message]:
    """Put the calls of one answer, and their results, into one message each."""
    groups: list[list[Message]] = []
    for message in messages:
        if groups and groups[-1][0].role == message.role and message.role in {"assistant", "tool"}:
            groups[-1].append(message)
        else:
            groups.append([message])
    return [Message(of[0].role, tuple(b for m in of for b in m.content)) for of in groups]


def _message(item: Item, n: int) -> Message:
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        raise Invalid(
            f"input[{n}] has the role {str(item.get('role'))[:60]!r}; use one of "
            f"{', '.join(_ROLES)}",
            field=f"input[{n}].role",
        )
    return Message(role, (Text(_content(item.get("content"), f"input[{n}].content")),))


def _content(content: Json, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Invalid(f"{where} must be text or a list of text parts", field=where)
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise Invalid(
                f"{where}[{i}] is of the type {str(kind)[:60]!r}; runs take text only",
                field=f"{where}[{i}].type",
                value=str(kind)[:60],
            )
    return "".join(part["text"] for part in content)


def _output(output: Json, n: int) -> str:
    return _content(output, f"input[{n}].output")


def _use(item: Item, n: int) -> ToolUse:
    name, call_id = _text(item, n, "name"), _text(item, n, "call_id")
    text = _text(item, n, "arguments")
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return ToolUse(call_id, name, {}, raw=text)
    return ToolUse(call_id, name, arguments)


def _text(item: Item, n: int, key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise Invalid(f"input[{n}].{key} must be text", field=f"input[{n}].{key}")
    return value


def text_item(item_id: str, text: str, status: str = "completed") -> Item:
    """Show text of the assistant."""
    return {
        "type": "message",
        "id": item_id,
        "role": "assistant",
        "status": status,
        "content": [text_part(text)] if text else [],
    }


def text_part(text: str) -> Item:
    """Show text as a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def call_item(ref: CallRef, use: ToolUse, arguments: str, status: str) -> Item:
    """Show a call that the client is to carry out."""
    return {
        "type": "function_call",
        "id": f"fc_{ref.run_id.hex}_{ref.step}_{ref.index}",
        "call_id": str(ref),
        "name": use.name,
        "arguments": arguments,
        "status": status,
    }


def arguments_of(use: ToolUse) -> str:
    """Return the arguments of a call as JSON text."""
    if use.raw is not None:
        return use.raw
    return json.dumps(use.input, ensure_ascii=False, separators=(",", ":"))


def tool_item(run_hex: str, row: Mapping[str, Any]) -> Item:
    """Show a call that was carried out here."""
    failed = row["status"] != "succeeded"
    error = {"type": "mcp_tool_execution_error", "content": row["result"] or row["status"]}
    return {
        "type": "mcp_call",
        "id": f"mcp_{run_hex}_{row['step']}_{row['idx']}",
        "server_label": "harness",
        "name": row["name"],
        "arguments": json.dumps(row["arguments"], ensure_ascii=False, separators=(",", ":")),
        "status": "failed" if failed else "completed",
        "output": None if failed else row["result"],
        "error": error if failed else None,
    }


def input_item(item_id: str, message: Message) -> list[Item]:
    """Show a message of the input."""
    out: list[Item] = []
    if text := message.text():
        kind = "output_text" if message.role == "assistant" else "input_text"
        part: Item = {"type": kind, "text": text}
        if kind == "output_text":
            part["annotations"] = []
        out.append(
            {
                "type": "message",
                "id": item_id,
                "role": message.role,
                "status": "completed",
                "content": [part],
            }
        )
    for i, block in enumerate(message.content):
        if isinstance(block, ToolUse):
            out.append(
                {
                    "type": "function_call",
                    "id": f"{item_id}_{i}",
                    "call_id": block.id,
                    "name": block.name,
                    "arguments": arguments_of(block),
                    "status": "completed",
                }
            )
        elif isinstance(block, ToolResult):
            out.append(
                {
                    "type": "function_call_output",
                    "id": f"{item_id}_{i}",
                    "call_id": block.tool_use_id,
                    "output": block.content,
                    "status": "completed",
                }
            )
    return out
