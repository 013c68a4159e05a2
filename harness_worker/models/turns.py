"""Cut a conversation into turns that every provider accepts: each call answered at once, each id
used once. Pure.

Used by the writers of the OpenAI forms. A conversation that breaks a server's rules is answered
with 400 for ever, so nothing of that kind leaves here, wherever the conversation came from.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core.message import Message, ToolResult, ToolUse
from harness_worker.models.json_out import json_bytes

NO_RESULT: Final = "Error: this call has no result; it was not carried out or was interrupted."
MAX_ID_CHARS: Final = 40
"""What Chat Completions of OpenAI accepts; the ids of other providers may be longer."""

_ILLEGAL_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class WireCall:
    """A tool use as it is sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer of the model with everything that was said until the next."""

    assistant: Message | None
    """None for what was said before the first answer."""
    calls: tuple[WireCall, ...] = ()
    """The tool uses of `assistant`, in order."""
    results: tuple[str, ...] = ()
    """The text of the result of each call."""
    others: tuple[tuple[str, str], ...] = ()
    """(role, text) of what users and the system said."""


def turns(messages: Sequence[Message]) -> Iterator[Turn]:
    """Cut before every assistant message.

    Text that stands between a call and its result moves behind the results; a call without result
    gets one that says so; a result without call becomes user text. Ids that are empty, too long or
    used twice in one answer are written anew, and always the same way.
    """
    turn: list[Message] = []
    for message in messages:
        if message.role == "assistant" and turn:
            yield _turn(turn)
            turn = []
        turn.append(message)
    if turn:
        yield _turn(turn)


def _turn(messages: list[Message]) -> Turn:
    assistant: Message | None = None
    if messages[0].role == "assistant":
        assistant, *messages = messages
    uses = assistant.tool_uses() if assistant else ()
    found: dict[int, str] = {}
    others: list[tuple[str, str]] = []
    for message in messages:
        for block in message.content:
            if not isinstance(block, ToolResult):
                continue
            place = next(
                (n for n, u in enumerate(uses) if u.id == block.tool_use_id and n not in found),
                None,
            )
            if place is None:
                others.append(("user", f"Result of an earlier tool call: {_result_text(block)}"))
            else:
                found[place] = _result_text(block)
        if text := message.text():
            others.append((message.role if message.role == "system" else "user", text))
    results = tuple(found.get(n, NO_RESULT) for n in range(len(uses)))
    return Turn(assistant, _calls(uses), results, tuple(others))


def _calls(uses: Sequence[ToolUse]) -> tuple[WireCall, ...]:
    calls: list[WireCall] = []
    seen: set[str] = set()
    for number, use in enumerate(uses):
        wire_id = use.id
        if not wire_id or wire_id in seen or len(wire_id) > MAX_ID_CHARS:
            wire_id = "call_" + hashlib.sha256(f"{number} {use.id}".encode()).hexdigest()[:24]
        seen.add(wire_id)
        calls.append(WireCall(wire_id, _name(use.name), _arguments(use)))
    return tuple(calls)


def _result_text(result: ToolResult) -> str:
    # The wire has no error flag: the model only knows what the text says.
    if not result.is_error:
        return result.content
    kind = f" ({result.error_type})" if result.error_type else ""
    return f"Error{kind}: {result.content}"


def _name(name: str) -> str:
    return _ILLEGAL_NAME.sub("_", name)[:64] or "unknown"


def _arguments(use: ToolUse) -> str:
    # Chat templates of vLLM and llama.cpp parse this text again and fail on anything but an object.
    value = {"invalid_arguments": use.raw} if use.raw else use.input
    return json_bytes(value).decode()
