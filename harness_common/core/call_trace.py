"""What a run remembers of a tool call to notice that it repeats itself: digests, not contents.

A `Trace` is 17 to 33 bytes. Two calls are compared by three things: the arguments (equal, or alike
by the words in them), what kind of result came, and whether that result says anything else than the
one before. Used by `core.loop_guard`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Final
from zlib import crc32

from harness_common.core.message import Json

_WORDS_KEPT: Final = 8
"""The smallest hashes of the words of the arguments: enough to estimate how much two share."""
_HEAD: Final = 13
_ONLY_NUMBERS_DIFFER: Final = 0.5


class Mark(IntFlag):
    """What kind of result a call had."""

    FAILED = 1
    PASSING = 2
    """It may go away by itself: a timeout, a limit, a server that is away."""
    EMPTY = 4
    """It says that there is nothing."""
    SHORT = 8
    """An acknowledgement: that two are equal says little."""
    PENDING = 16
    """It says that something is still under way."""
    WAITED = 32
    """Time has passed in this call: what comes after it may be another answer."""
    NUMBERED = 64
    """There are numbers among the arguments."""
    EFFECT = 128
    """The tool changes something: other arguments are other work."""


@dataclass(frozen=True, slots=True)
class Trace:
    """One call that has ended, as it is compared with others."""

    tool: int
    exact: bytes
    """Digest of the arguments, whatever the order of their keys."""
    numbers: int
    """Digest of the numbers and numbered names among them."""
    marks: Mark
    result: bytes
    """Digest of what the result says, without the arguments that it repeats, times and ids."""
    words: frozenset[int]

    def encode(self) -> str:
        """Write it as text for the memo."""
        head = self.tool.to_bytes(2) + self.exact + self.numbers.to_bytes(2)
        head += int(self.marks).to_bytes(1) + self.result
        words = b"".join(word.to_bytes(2) for word in sorted(self.words))
        return base64.urlsafe_b64encode(head + words).decode().rstrip("=")

    @staticmethod
    def decode(text: str) -> Trace:
        """Read what `encode` wrote."""
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        words = raw[_HEAD:]
        return Trace(
            tool=int.from_bytes(raw[:2]),
            exact=raw[2:6],
            numbers=int.from_bytes(raw[6:8]),
            marks=Mark(raw[8]),
            result=raw[9:_HEAD],
            words=frozenset(int.from_bytes(words[i : i + 2]) for i in range(0, len(words), 2)),
        )


def trace(
    tool: str,
    arguments: Json,
    *,
    content: str,
    error_type: str | None = None,
    failed: bool = False,
    waited: bool = False,
    has_effect: bool = False,
) -> Trace:
    """Make the trace of a call that has ended."""
    words, numbers = _words(arguments)
    said = _said(content, tool, arguments, is_failure=failed)
    marks = _marks_of_result(said, error_type, is_failure=failed)
    marks |= Mark.WAITED if waited else Mark(0)
    marks |= Mark.NUMBERED if numbers else Mark(0)
    marks |= Mark.EFFECT if has_effect else Mark(0)
    kept = sorted({_hash(word) for word in words})[:_WORDS_KEPT]
    return Trace(
        tool=_hash(tool),
        exact=exact_digest(arguments),
        numbers=_hash(" ".join(sorted(numbers))),
        marks=marks,
        result=_digest(f"{error_type}\n{said}"),
        words=frozenset(kept),
    )


def exact_digest(arguments: Json) -> bytes:
    """Return the digest of arguments, whatever the order of their keys."""
    return _digest(json.dumps(arguments, sort_keys=True, ensure_ascii=True, default=str))


def tool_digest(tool: str) -> int:
    """Return the digest of a tool's name."""
    return _hash(tool)


def alike(a: Trace, b: Trace) -> float:
    """Return how much the arguments of two calls of one tool are alike: 1 for equal ones.

    The share of common words, numbers aside; an estimate when there are many words.
    """
    if a.exact == b.exact:
        return 1.0
    if not a.words and not b.words:
        return 1.0 if a.numbers == b.numbers else _ONLY_NUMBERS_DIFFER
    sample = sorted(a.words | b.words)[:_WORDS_KEPT]
    return len([w for w in sample if w in a.words and w in b.words]) / len(sample)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=4).digest()


def _hash(text: str) -> int:
    return crc32(text.encode(errors="replace")) & 0xFFFF


_WORD: Final = re.compile(r"[^\W_]+(?:[._'-][^\W_]+)*")
_DIGIT: Final = re.compile(r"\d")
_COMMON: Final = frozenset(
    {"a", "an", "and", "are", "by", "do", "find", "for", "from", "get", "how", "in", "is", "it"}
    | {"me", "of", "on", "or", "please", "search", "show", "tell", "the", "to", "what", "which"}
    | {"with", "your"}
)


def _words(arguments: Json) -> tuple[set[str], set[str]]:
    """Return the words of arguments, each with the field it stands in, and their numbers.

    A text with spaces is words; one without is a name and counts as a whole: `a/b.txt` and
    `a/c.txt` are two files, not two like texts.
    """
    words, numbers = set[str](), set[str]()
    for field, leaf in _leaves("", arguments):
        parts = _WORD.findall(leaf) if " " in leaf.strip() else [_plain_name(leaf)]
        for part in parts:
            if _DIGIT.search(part):
                numbers.add(f"{field}:{part}")
            elif part not in _COMMON:
                words.add(f"{field}:{part}")
    return words, numbers


def _leaves(field: str, value: Json) -> Iterator[tuple[str, str]]:
    match value:
        case Mapping():
            for key, part in value.items():
                yield from _leaves(f"{field}.{key}", part)
        case list() | tuple():
            for part in value:
                yield from _leaves(field, part)
        case str():
            yield field, value.lower()
        case _:
            yield field, str(value).lower()


def _plain_name(name: str) -> str:
    """Write a name, path or address in one way."""
    name = re.sub(r"^https?://(www\.)?", "", name.strip().strip("\"'"))
    return re.sub(r"/{2,}", "/", re.sub(r"^(\./)+", "", name)).rstrip("/.?!")


_CHANGING: Final = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?"  # times
    r"|\b\d\d:\d\d:\d\d(\.\d+)?\b"
    r"|\b1[5-9]\d{8}(\d{3})?\b"  # seconds or milliseconds since 1970
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # ids
    r"|\b(?=[a-z]*\d)[0-9a-f]{12,}\b|\b(req|request|trace|run|call|art|span)[_-]\w{4,}"
    r"|\b\d+(\.\d+)? ?(ms|us|µs|s|sec|secs|seconds|millis)\b",
    re.IGNORECASE,
)
"""What differs between two equal answers: when they were given, how long that took, their ids."""
_SPACE: Final = re.compile(r"\s+")
_NUMBER: Final = re.compile(r"\d+([.,]\d+)*")
_SAID_CHARS: Final = 20_000
_ERROR_CHARS: Final = 400


def _said(content: str, tool: str, arguments: Json, *, is_failure: bool) -> str:
    """Return what a result says that its call did not say."""
    text = _CHANGING.sub("", content[:_SAID_CHARS])
    spoken = {tool, *(leaf for _, leaf in _leaves("", arguments) if len(leaf) > 2)}
    text = text.lower()
    for leaf in sorted(spoken, key=lambda leaf: (-len(leaf), leaf)):
        text = text.replace(leaf.lower(), "§")
    if is_failure:
        text = _NUMBER.sub("#", text)[:_ERROR_CHARS]
    return _SPACE.sub(" ", text).strip()


_PASSING: Final = re.compile(
    r"TIMEOUT|TRANSIENT|UNAVAILABLE|RATE|LIMITED|THROTTLED|CONNECTION|CONNECT|BUSY|OVERLOADED"
)
_EMPTY: Final = re.compile(
    r"\b(no|0|zero) (more |matching |further )?"
    r"(results?|matches|match|rows?|items?|hits?|records?|entries|documents?|files?|data)\b"
    r"|\bnot found\b|\bnothing (was )?found\b|\bno such\b|\bnone found\b|\bempty\b"
)
_PENDING: Final = re.compile(
    r"\b(pending|running|in[ _-]progress|queued|processing|waiting|not (yet )?ready|building|"
    r"starting|provisioning|still|scheduled|in flight|syncing|uploading|deploying|indexing)\b"
)
_SHORT_WORDS: Final = 8


def _marks_of_result(said: str, error_type: str | None, *, is_failure: bool) -> Mark:
    marks = Mark(0)
    if is_failure:
        marks |= Mark.FAILED
        if error_type and _PASSING.search(error_type.upper()):
            marks |= Mark.PASSING
        return marks
    words = _WORD.findall(said)
    if not words or _nothing_in(said) or (len(words) < 25 and _EMPTY.search(said)):
        marks |= Mark.EMPTY
    if len(words) < _SHORT_WORDS:
        marks |= Mark.SHORT
    if len(words) < 40 and _PENDING.search(said):
        marks |= Mark.PENDING
    return marks


def _nothing_in(said: str) -> bool:
    """Tell whether a result is JSON without anything in it."""
    try:
        value = json.loads(said)
    except ValueError:
        return False
    if not isinstance(value, dict):
        return not value
    lists = [v for v in value.values() if isinstance(v, list | dict)]
    return not value or (bool(lists) and not any(lists))
