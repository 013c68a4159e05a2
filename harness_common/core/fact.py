"""Rules about facts that are remembered: what one looks like, what it rests on, how it is found.

Used by the tools of agents and by the API, which have the same rules.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from harness_common.core.context_extract import quoted
from harness_common.core.context_view import is_summary, section_of
from harness_common.core.errors import Denied, Invalid
from harness_common.core.hints import is_assigned, is_hint
from harness_common.core.message import Message, Text, ToolResult, Trust
from harness_common.core.secret_shapes import secret_shape

T = TypeVar("T")
_K: Final = 60
"""The constant of reciprocal rank fusion (Cormack, Clarke, Büttcher 2009)."""
_MIN_QUOTE_CHARS: Final = 8
_AROUND: Final = " \"'.\u2018\u2019\u201c\u201d\u2026"
"""What may stand around a quote: spaces, quotation marks, dots."""
_WORD: Final = re.compile(r"[^\W_]+")
_HAN: Final = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]+")
_CLOSING: Final = re.compile(r"</?\s*memory[^>]*>", re.IGNORECASE)


def clean_fact(text: str, max_chars: int) -> str:
    """Return a fact on one line; raises `Invalid` for none or a page, `Denied` for a secret."""
    kept = "".join(c if unicodedata.category(c) not in {"Cc", "Cf", "Cs"} else " " for c in text)
    line = " ".join(_CLOSING.sub(" ", kept).split())
    if not line:
        raise Invalid("the fact is empty", code="FACT_INVALID", field="text", value=text[:100])
    if len(line) > max_chars:
        raise Invalid(
            f"a fact has at most {max_chars} characters and this one {len(line)}: say it in a "
            "sentence, or keep the whole as an artifact and remember where it is",
            code="FACT_TOO_LONG",
            field="text",
            value=len(line),
            limit=max_chars,
        )
    shape = secret_shape(line)
    if shape is not None:
        raise Denied(
            f"this looks like {shape}; secrets are not remembered. Keep it with "
            "`harness secrets set` and remember its name",
            code="FACT_IS_SECRET",
            field="text",
        )
    return line


@dataclass(frozen=True, slots=True)
class Source:
    """Where something was said."""

    who: str
    """`user` or `tool`."""
    trust: Trust
    message: int
    """Which message of the conversation, from 1."""


def source_of(quote: str, said: Sequence[Message]) -> Source | None:
    """Find who said `quote`, to the letter but for case and spaces; the most trusted counts. What
    the model said itself is no source.
    """
    wanted = _plain(quote)
    if not wanted:
        return None
    found = None
    for number, message in enumerate(said, 1):
        who = {"user": "user", "tool": "tool"}.get(message.role)
        if who is None or not any(_holds(text, wanted) for text in _texts(message)):
            continue
        if message.trust == "trusted":
            return Source(who, "trusted", number)
        found = found or Source(who, message.trust, number)
    return found


def _holds(text: str, wanted: str) -> bool:
    """Tell whether a text holds a quote; a short one has to be all of it."""
    plain = _plain(text)
    return wanted == plain or (len(wanted) >= _MIN_QUOTE_CHARS and wanted in plain)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().strip(_AROUND).split())


def _texts(message: Message) -> Iterable[str]:
    """List what a message says that is a source: not the platform's notes, which repeat the model's
    words, nor what a model asked of a child, and of a summary, which a model wrote, only what it
    quotes.
    """
    if is_hint(message) or is_assigned(message) or section_of(message) is not None:
        return
    if is_summary(message):
        yield from quoted(message)
        return
    for block in message.content:
        if isinstance(block, Text):
            yield block.text
        elif isinstance(block, ToolResult) and not block.is_error:
            yield block.content


def search_words(text: str) -> str:
    """Return a text as full-text search takes it: what is written without spaces between words (as
    Chinese is) also in pairs of characters.
    """
    pairs = [
        run[i : i + 2] for run in _HAN.findall(text) for i in range(max(1, len(run) - 1))
    ]  # a single character is a pair of one
    return " ".join([text, *pairs]) if pairs else text


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text without their commonest English endings, for ranking here what
    Postgres cannot read.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    return frozenset(_stem(w) for w in _WORD.findall(search_words(folded)) if w not in _STOP)


def _stem(word: str) -> str:
    for ending in ("ing", "ies", "es", "ed", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)] + ("y" if ending == "ies" else "")
    return word


_STOP: Final = frozenset(
    """a an and are as at be by do does for from has have how i in is it its me my of on or our
    should that the their they this to used was we were what when where which who will with you
    your""".split()  # noqa: SIM905 - as words it can be read
)


def fused(*rankings: Sequence[T]) -> list[tuple[T, float]]:
    """Join rankings by reciprocal rank: what several put high comes first. The best possible score
    is the number of rankings / 61.
    """
    scores: dict[T, float] = {}
    for ranking in rankings:
        for place, one in enumerate(ranking, 1):
            scores[one] = scores.get(one, 0.0) + 1 / (_K + place)
    return sorted(scores.items(), key=lambda pair: -pair[1])


def estimated_tokens(text: str) -> int:
    """Estimate the tokens of a text: four letters of an alphabet, or one character of Chinese."""
    wide = sum(len(run) for run in _HAN.findall(text))
    return wide + (len(text) - wide + 3) // 4
