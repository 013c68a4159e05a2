"""The fixed form to which a conversation is reduced: intent, done, to do, constraints.

Made by code alone: from a summary that came out too long, or from the messages themselves when no
model is to be asked. The same messages give the same text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from harness_common.core.context_rounds import ARTIFACT, cut_text
from harness_common.core.context_view import Shown, is_summary, section_of
from harness_common.core.hints import is_hint
from harness_common.core.message import Message, Text, ToolResult, ToolUse
from harness_common.core.tokens import BYTES_PER_TOKEN, json_text, text_bytes, text_tokens

HEADINGS: Final = ("Intent", "Done", "To do", "Constraints")
_SHARES: Final = (0.15, 0.45, 0.2, 0.2)
"""How much of the budget each part may take."""
_HEADING: Final = re.compile(
    r"^[#*\s]*(intent|done|to[ -]?do|constraints)\b[*:\s]*(.*)$", re.IGNORECASE
)
_RULES: Final = re.compile(
    r"(?i)\b(must|never|only|always|do not|don't|without|at most|at least|no more than)\b"
    r"|必须|不要|不能|禁止|只能"
)
_LAST_CALLS: Final = 12
_LINE_CHARS: Final = 200


def extract(shown: Sequence[Shown], budget_tokens: int) -> str:
    """Reduce messages to the fixed form within a budget; an earlier summary among them is carried
    over part by part.
    """
    parts: dict[str, list[str]] = {name: [] for name in HEADINGS}
    rest: list[Message] = []
    for one in shown:
        if is_summary(one.message):
            _add(parts, from_summary(summary_body(one.message)))
        else:
            rest.append(one.message)
    users = [m.text() for m in rest if _is_said(m)]
    if not parts["Intent"]:
        parts["Intent"] += [_line(users[0], 4 * _LINE_CHARS)] if users else []
    parts["Done"] += _calls(rest)
    said = [m.text() for m in rest if m.role == "assistant" and m.text().strip()]
    if said:
        parts["To do"] = [_line(f"Last said: {said[-1]}", 3 * _LINE_CHARS)]
    parts["Constraints"] += _rules(users)
    return fixed_form(parts, budget_tokens)


def extract_summary(summary: str, budget_tokens: int) -> str:
    """Reduce a summary that came out too long to the fixed form; text under no heading counts as
    done.
    """
    return fixed_form(from_summary(summary), budget_tokens)


def from_summary(text: str) -> dict[str, list[str]]:
    """Read the parts of a text that has the four headings."""
    parts: dict[str, list[str]] = {name: [] for name in HEADINGS}
    into = "Done"
    for line in text.splitlines():
        found = _HEADING.match(line.strip())
        if found:
            into = _heading(found[1])
            line = found[2]  # noqa: PLW2901
        if line.strip():
            parts[into].append(line.strip().removeprefix("- "))
    return parts


def fixed_form(parts: dict[str, list[str]], budget_tokens: int) -> str:
    """Write the parts, each within its share of the budget: of what was done the newest lines stay,
    of the rest the first.
    """
    out = []
    for name, share in zip(HEADINGS, _SHARES, strict=True):
        room = int(budget_tokens * share)
        lines = _fit(list(dict.fromkeys(parts[name])), room, newest=name == "Done")
        out.append(f"{name}:\n" + "\n".join(f"- {line}" for line in lines or ["(nothing)"]))
    return "\n".join(out)


def summary_body(message: Message) -> str:
    """Return the summarising part of a summary: its last text, without head and quotations."""
    texts = [b.text for b in message.content if isinstance(b, Text)]
    return texts[-1] if texts else ""


def said_by_user(shown: Sequence[Shown], budget_tokens: int) -> list[str]:
    """Return what users said, word for word: the first in full as far as a half of the budget goes,
    then the newest.
    """
    found: list[str] = []
    for one in shown:
        if is_summary(one.message):
            found += quoted(one.message)
        elif _is_said(one.message):
            found.append(one.message.text().strip())
    if not found:
        return []
    first = cut_text(found[0], budget_tokens * BYTES_PER_TOKEN // 2)
    left = budget_tokens - text_tokens(first)
    newest: list[str] = []
    for text in reversed(found[1:]):
        piece = cut_text(text, max(_LINE_CHARS, budget_tokens * BYTES_PER_TOKEN // 4))
        if text_tokens(piece) > left:
            break
        left -= text_tokens(piece)
        newest.append(piece)
    return [first, *reversed(newest)]


QUOTE: Final = "\n> "


def quotation(texts: Iterable[str]) -> str:
    """Write what users said as quotations, one after another."""
    return "\n\n".join("> " + text.replace("\n", QUOTE) for text in texts)


def quoted(message: Message) -> list[str]:
    """Read back what a summary quotes of users."""
    texts = [b.text for b in message.content if isinstance(b, Text)]
    if len(texts) != 3:
        return []
    blocks = texts[1].split("\n\n> ")
    return [b.strip("\n").replace(QUOTE, "\n") for b in blocks[1:]]


def _is_said(message: Message) -> bool:
    of_user = message.role == "user" and section_of(message) is None and not is_hint(message)
    return of_user and bool(message.text().strip())


def _heading(word: str) -> str:
    word = word.lower().replace("-", " ")
    return "To do" if word in {"to do", "todo"} else word.capitalize()


def _add(parts: dict[str, list[str]], more: dict[str, list[str]]) -> None:
    for name, lines in more.items():
        parts[name] += [line for line in lines if line != "(nothing)"]


def _calls(messages: Sequence[Message]) -> list[str]:
    """Say which tools were called how often, and how the last calls ended."""
    results: list[tuple[ToolUse, ToolResult]] = []
    asked: dict[str, ToolUse] = {}
    for message in messages:
        if uses := message.tool_uses():
            asked = {use.id: use for use in uses}
        results += [
            (asked[block.tool_use_id], block)
            for block in message.content
            if isinstance(block, ToolResult) and block.tool_use_id in asked
        ]
    if not results:
        return []
    counts = Counter(use.name for use, _ in results)
    failed = Counter(use.name for use, result in results if result.is_error)
    told = ", ".join(
        f"{name} {n} times" + (f" ({failed[name]} failed)" if failed[name] else "")
        for name, n in counts.most_common()
    )
    lines = [f"Called {told}."]
    artifacts = dict.fromkeys(a for _, r in results for a in ARTIFACT.findall(r.content))
    if artifacts:
        lines.append(f"Artifacts: {', '.join(list(artifacts)[-10:])}")
    for use, result in results[-_LAST_CALLS:]:
        end = f"error {result.error_type or ''}: " if result.is_error else ""
        lines.append(
            _line(f"{use.name}({use.raw or json_text(use.input)}) → {end}{result.content}")
        )
    return lines


def _rules(users: Sequence[str]) -> list[str]:
    sentences = [s for text in users for s in re.split(r"(?<=[.!?。\uff01\uff1f])\s+|\n", text)]
    return [_line(s) for s in sentences if _RULES.search(s)]


def _line(text: str, most: int = _LINE_CHARS) -> str:
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1] + "…"


def _fit(lines: Sequence[str], budget_tokens: int, *, newest: bool) -> list[str]:
    """Keep as many lines as fit, cutting the first that does not."""
    left = budget_tokens * BYTES_PER_TOKEN
    out: list[str] = []
    for line in reversed(lines) if newest else lines:
        size = text_bytes(line) + 3
        if size > left:
            if not out and left > 3:
                out.append(line.encode()[:left].decode(errors="ignore"))
            break
        left -= size
        out.append(line)
    return list(reversed(out)) if newest else out
