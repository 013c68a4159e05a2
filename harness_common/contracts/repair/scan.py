"""Finding JSON objects in a text, and telling what in them is a string, even when quotes are wrong.

A quote ends a string only where JSON goes on after it: then quotes that nobody escaped stay inside.
In valid JSON that is always so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

MAX_DEPTH: Final = 64

_OPENERS: Final = {'"': '"', "'": "'", "“": "”", "”": "”", "„": "“", "«": "»", "＂": "＂"}
_OPENER: Final = re.compile(f"[{''.join(_OPENERS)}]")
_QUOTES: Final = {
    opener: re.compile(rf"\\.|[{closer}{opener if opener in '“”' else ''}]", re.DOTALL)
    for opener, closer in _OPENERS.items()
}
"""What may end a string, by the quote that began it; an escape is passed over."""
_ENDS: Final = re.compile(
    r"\s*(?:[,:;}\]\)，：｝］]|$|//|/\*|\#)|\s*\n\s*[\"'“]"
    r"|\s+[\"'“][^\"'”,:{}\[\]]*[\"'”]\s*:"
)
"""What may stand behind a string: a sign, the end, a comment, a string in the next line, or (where
a comma was forgotten) a key.
"""
_OBJECT: Final = re.compile(r"\{\s*(?:[\"'“”„«＂}]|[A-Za-z_$][\w$-]*\s*:|//|/\*|#)")
_CLOSES: Final = {"}": "{", "]": "["}


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of the text: a string with its quotes, or what is between strings."""

    text: str
    is_string: bool


@dataclass(frozen=True, slots=True)
class Found:
    """An object in a text. `end` is None when it is not closed; `missing` closes it then, unless
    the text stops within a string.
    """

    start: int
    end: int | None
    missing: str = ""
    in_string: bool = False


def string_end(text: str, start: int) -> int | None:
    """Return where the string that begins at `start` ends, after its quote; None: nowhere."""
    for found in _QUOTES[text[start]].finditer(text, start + 1):
        if found[0][0] != "\\" and _ENDS.match(text, found.end()):
            return found.end()
    return None


@lru_cache(maxsize=8)
def spans(text: str) -> tuple[Span, ...]:
    """Cut a text that is one object into strings and what is between them."""
    return tuple(_spans(text))


def _spans(text: str) -> Iterator[Span]:
    i = since = 0
    endless: set[str] = set()
    while (found := _OPENER.search(text, i)) is not None:
        i, char = found.start(), found[0]
        if char in endless or (char == "'" and not _may_open(text, i)):
            i += 1
            continue
        end = string_end(text, i)
        if end is None:  # then no later one of its sort ends either: look for none again
            endless.add(char)
            continue
        if since < i:
            yield Span(text[since:i], False)
        yield Span(text[i:end], True)
        i = since = end
    if since < len(text):
        yield Span(text[since:], False)


def objects(text: str) -> list[Found]:
    """Find the outermost objects in a text, in order; an unclosed one is the last."""
    found: list[Found] = []
    i = text.find("{")
    while i >= 0:
        if _OBJECT.match(text, i):
            one = _object(text, i)
            found.append(one)
            if one.end is None:
                break
            i = text.find("{", one.end)
        else:
            i = text.find("{", i + 1)
    return found


def _object(text: str, start: int) -> Found:
    stack: list[str] = []
    i = start
    while i < len(text):
        char = text[i]
        if char in _OPENERS and (char != "'" or _may_open(text, i)):
            end = string_end(text, i)
            if end is None:
                return Found(start, None, in_string=True)
            i = end
            continue
        if char in "{[":
            stack.append(char)
        elif char in "}]" and stack:
            if stack[-1] != _CLOSES[char] and _CLOSES[char] not in stack:
                i += 1
                continue
            while stack and stack.pop() != _CLOSES[char]:
                pass
            if not stack:
                return Found(start, i + 1)
        i += 1
    closing = {"{": "}", "[": "]"}
    return Found(start, None, "".join(closing[c] for c in reversed(stack)))


def _may_open(text: str, at: int) -> bool:
    """Tell an opening single quote from an apostrophe."""
    before = text[max(0, at - 64) : at].rstrip()
    return not before or before[-1] in "{[,:("


def too_deep(text: str) -> bool:
    """Tell whether a text nests deeper than `MAX_DEPTH`, strings left out."""
    depth = 0
    for span in spans(text):
        if span.is_string:
            continue
        for char in span.text:
            depth += (char in "{[") - (char in "}]")
            if depth > MAX_DEPTH:
                return True
    return False
