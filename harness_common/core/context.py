"""Rules about the conversation that a model is shown."""

from __future__ import annotations

from collections.abc import Sequence

from harness_common.core.message import Message, ToolResult


def closed_history(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Answer every tool use that has no result, right after the message that asked.

    A run that was cancelled or failed leaves such orphans; providers refuse a conversation that has one.
    """
    out: list[Message] = []
    for i, message in enumerate(messages):
        out.append(message)
        uses = message.tool_uses()
        if not uses:
            continue
        following = messages[i + 1] if i + 1 < len(messages) else None
        answered = (
            {b.tool_use_id for b in following.content if isinstance(b, ToolResult)}
            if following is not None
            else set()
        )
        missing = [u for u in uses if u.id not in answered]
        if missing and not answered:
            out.append(
                Message(
                    "tool",
                    tuple(
                        ToolResult(u.id, "The run ended before this call.", True, "CANCELLED")
                        for u in missing
                    ),
                )
            )
    return tuple(out)
