"""Rules about the conversation that a model is shown."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from harness_common.core.message import Message, ToolResult, ToolUse


def closed_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Answer every tool use that has no result, right after the message that asked.

    A run that was cancelled or failed leaves such orphans; providers refuse a conversation that has
    one.
    """
    out: list[Message] = []
    asked: tuple[ToolUse, ...] = ()
    for message in messages:
        answered = {b.tool_use_id for b in message.content if isinstance(b, ToolResult)}
        missing = _cancelled(asked, answered)
        if missing and answered:
            message = replace(message, content=message.content + missing)  # noqa: PLW2901
        elif missing:
            out.append(Message("tool", missing))
        out.append(message)
        asked = message.tool_uses()
    if asked:
        out.append(Message("tool", _cancelled(asked, frozenset())))
    return tuple(out)


def _cancelled(asked: tuple[ToolUse, ...], answered: Set[str]) -> tuple[ToolResult, ...]:
    return tuple(
        ToolResult(u.id, "The run ended before this call.", True, "CANCELLED")
        for u in asked
        if u.id not in answered
    )
