"""Write our messages in the form of the Messages API. Pure.

Used by `anthropic`. The conversation was repaired before (`core/history.py`): every call is
answered in the next message. Here reasoning is sent back exactly as it came, or left out whole.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from harness_common.contracts.model import ToolDef
from harness_common.core.message import Block, Json, Message, Text, ToolResult, ToolUse
from harness_worker.models.anthropic_stream import PROVIDER, REASONING
from harness_worker.models.json_out import json_bytes

_ILLEGAL_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")
GO_ON: Final = "Continue."
"""Said for the user where the conversation ends with the model: most models take no beginning of an
answer.
"""


@dataclass(frozen=True, slots=True)
class Written:
    """The part of a request that is the conversation."""

    system: str
    tools: list[Json]
    messages: list[Json]
    prefix: str
    """Digest of all of it, for reasoning that comes back (see `write`)."""
    loop_without_reasoning: bool
    """The calls that are answered now stand in an answer whose reasoning is not sent back."""


def write(
    system: str, tools: Sequence[ToolDef], messages: Sequence[Message], model: str
) -> Written:
    """Write a conversation.

    Reasoning is bound to what stood before it: newer models refuse it when the system text, a tool
    or an earlier message has changed since. So a message's reasoning is sent only while the
    digest of what stands before it is the one that was noted when it came.
    """
    tool_list = [_tool(tool) for tool in tools]
    seen = hashlib.sha256(json_bytes([system, tool_list]))
    out: list[dict[str, Any]] = []
    hashed = 0
    reasoned = False
    for message in messages:
        if message.role == "assistant":
            for sent in out[hashed:]:
                seen.update(json_bytes(sent))
            hashed = len(out)
            blocks = list(_assistant(message, model, seen.hexdigest()))
            reasoned = any(b["type"] in REASONING for b in blocks)
            _append(out, "assistant", blocks)
        else:
            _append(out, "user", [_block(b, message.role) for b in message.content])
    for sent in out[hashed:]:
        seen.update(json_bytes(sent))
    in_loop = bool(out) and out[-1]["content"][0]["type"] == "tool_result"
    if out and out[-1]["role"] == "assistant" and not _is_paused(messages[-1], model):
        _append(out, "user", [{"type": "text", "text": GO_ON}])
    return Written(system, tool_list, list(out), seen.hexdigest(), in_loop and not reasoned)


def _append(out: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Add blocks, to the message before when it is of the same role: the API wants turns."""
    if not blocks:
        return
    if out and out[-1]["role"] == role:
        out[-1]["content"] += blocks
    else:
        out.append({"role": role, "content": blocks})


def _is_paused(message: Message, model: str) -> bool:
    extra = message.extra
    return _is_ours(extra, model) and bool(extra.get("paused"))


def _is_ours(extra: Json, model: str) -> bool:
    return (
        isinstance(extra, dict)
        and extra.get("provider") == PROVIDER
        and extra.get("model") == model
        and isinstance(extra.get("layout"), list)
    )


def _assistant(message: Message, model: str, prefix: str) -> Iterator[dict[str, Any]]:
    extra, content = message.extra, message.content
    if not _is_ours(extra, model) or not _places(extra["layout"], len(content)):
        yield from (_block(block, "assistant") for block in content)
        return
    for item in extra["layout"]:
        if isinstance(item, int):
            yield _block(content[item], "assistant")
        elif item["type"] not in REASONING or extra.get("prefix") == prefix:
            yield item


def _places(layout: list[Json], blocks: int) -> bool:
    """Tell whether a layout still has each block of its message, once: a message that was changed
    since (a call read out of its text, a text rewritten) is sent as it stands.
    """
    return [item for item in layout if isinstance(item, int)] == list(range(blocks))


def _block(block: Block, role: str) -> dict[str, Any]:
    match block:
        case Text(text):
            said = f"[system] {text}" if role == "system" else text
            return {"type": "text", "text": said}
        case ToolUse(use_id, name, value, raw):
            # Only an object is accepted.
            given = value if raw is None else {"invalid_arguments": raw}
            legal = _ILLEGAL_NAME.sub("_", name)[:64] or "unknown"
            return {"type": "tool_use", "id": use_id, "name": legal, "input": given}
        case ToolResult(use_id, text, is_error, error_type):
            out: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": use_id,
                "content": text,
            }
            if is_error:
                kind = f"Error ({error_type}): " if error_type else ""
                out |= {"content": kind + text, "is_error": True}
            return out


def _tool(tool: ToolDef) -> Json:
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
    }


# ── prompt caching ───────────────────────────────────────────────────────────────────────────────


def cached(written: Written, mark: Json) -> tuple[Json, list[Json], list[Json]]:
    """Return `system`, `tools` and `messages` with the marks that let the provider keep them.

    The first mark stands behind what never changes, tools and system text. With tools there will be
    more steps over the same conversation: then its end is marked for the next one, and the end of
    what the step before sent, from where this one reads. Marks are no part of what is kept.
    """
    tools, messages = list(written.tools), list(written.messages)
    system: Json = written.system
    if system:
        system = [{"type": "text", "text": system, "cache_control": mark}]
    elif tools:
        tools[-1] = {**tools[-1], "cache_control": mark}
    if tools:
        ends = [i for i, m in enumerate(messages) if m["role"] == "user"][-2:]
        for index in ends:
            *before, last = messages[index]["content"]
            marked = {**last, "cache_control": mark}
            messages[index] = {**messages[index], "content": [*before, marked]}
    return system, tools, messages
