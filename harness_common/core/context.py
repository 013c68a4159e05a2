"""A conversation that a provider accepts: every tool use is answered right after it was asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from harness_common.core.context_view import Shown
from harness_common.core.message import Message, ToolResult, ToolUse


def closed_past(shown: Sequence[Shown]) -> tuple[Shown, ...]:
    """Answer every tool use that has no result, right after the message that asked; an answer that
    was put in comes from nowhere.

    A run that was cancelled or failed leaves such orphans. `core.history` would answer them too,
    for each request anew; here they get the words for what became of them.
    """
    return tuple(_closed(shown))


def _closed(shown: Sequence[Shown]) -> Iterator[Shown]:
    asked: tuple[ToolUse, ...] = ()
    for one in shown:
        message = one.message
        answered = {b.tool_use_id for b in message.content if isinstance(b, ToolResult)}
        missing = _cancelled(asked, answered)
        if missing and answered:
            message = replace(message, content=message.content + missing)
        elif missing:
            yield Shown(Message("tool", missing))
        yield Shown(message, one.origin)
        asked = message.tool_uses()
    if asked:
        yield Shown(Message("tool", _cancelled(asked, frozenset())))


def _cancelled(asked: tuple[ToolUse, ...], answered: Set[str]) -> tuple[ToolResult, ...]:
    return tuple(
        ToolResult(u.id, "The run ended before this call.", True, "CANCELLED")
        for u in asked
        if u.id not in answered
    )
