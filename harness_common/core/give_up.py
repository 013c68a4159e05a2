"""Asks a model that gives up at the first error of a tool, once, to go on.

Only what sounds like giving up is asked about: an answer that uses what it has is an answer. What
was denied is none of this guard's business: there the model is meant to stop.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from harness_common.core import events as ev
from harness_common.core.denials import DENIALS
from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.hints import hint
from harness_common.core.message import Json, Message, ToolResult

ASKED: Final = "asked_to_go_on"
"""The key of `RunState.memo`: that it was asked."""
_LONGEST: Final = 1_200
"""Characters of an answer that may be giving up; a longer one has something to say."""

_GIVES_UP: Final = re.compile(
    r"\b(can(no|')?t|cannot|could ?n[o']t|can not|could not|unable|not able|was ?n[o']t able|"
    r"impossible|fail(ed|s|ure)?|did ?n[o']t work|does ?n[o']t work|sorry|apolog\w+|unfortunately|"
    r"error|give up|giving up|no way to|not possible|try again later|went wrong|problem with|"
    r"an issue|don't have access|do not have access)\b"
    r"|无法|不能|失败|抱歉|对不起|出错|错误"
    r"|\b(leider|nicht möglich|fehlgeschlagen|fehler|désolé|impossible|échou\w+|erreur|lo siento|"
    r"no puedo|no pude)\b",
    re.IGNORECASE,
)
_ASKS_BACK: Final = re.compile(r"\?\s*$")


def ask_to_go_on(
    memo: Mapping[str, Json], messages: Sequence[Message], answer: Message, step: int
) -> Guidance:
    """Rule on a final answer; `messages` are the run's own before it.

    Speaks once a run, when the results just before were all errors, were the first ones, and the
    answer gives up. An answer that asks the user for something missing does not.
    """
    if memo.get(ASKED) or not messages or messages[-1].role != "tool":
        return NOTHING
    rounds = [_results(m) for m in messages if m.role == "tool"]
    last = rounds[-1]
    if not last or any(not r.is_error or r.error_type in DENIALS for r in last):
        return NOTHING
    if any(r.is_error for results in rounds[:-1] for r in results):
        return NOTHING  # it has tried again already
    text = answer.text().strip()
    if text and not (len(text) <= _LONGEST and _GIVES_UP.search(text)):
        return NOTHING
    if _ASKS_BACK.search(text):
        return NOTHING
    kinds = sorted({r.error_type or "error" for r in last})
    said = hint(
        f"That was the first attempt, and it failed ({', '.join(kinds)}). Do not give up yet: read "
        "the error, correct the call, or reach the goal in another way. If nothing can be done, "
        "say what you tried and why it cannot work."
    )
    event = Event(ev.GUARD_HINTED, {"guard": "give_up", "errors": kinds}, step)
    return Guidance((said,), (event,), {ASKED: True}, again=True)


def _results(message: Message) -> list[ToolResult]:
    return [b for b in message.content if isinstance(b, ToolResult)]
