"""Summarising the older part of a conversation with a model, in pieces that never overflow.

The pieces are summarised one by one; where there are several, their summaries are summarised in
turn. A piece that is refused as too long is halved. What comes out too long is reduced to the fixed
form by code.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core.context_extract import extract, extract_summary
from harness_common.core.context_step import OVERFLOW
from harness_common.core.context_summary import instructions, pieces, question, record_lines
from harness_common.core.context_view import Shown
from harness_common.core.errors import Permanent
from harness_common.core.tokens import text_tokens

_LEAST_PIECE_TOKENS: Final = 200
MOST_CALLS: Final = 64
"""More pieces than this are not summarised by a model: the fixed form is made by code."""


@dataclass(frozen=True, slots=True)
class Said:
    """One answer of the summarising model."""

    text: str
    cut: bool = False
    """It was longer than it was allowed to be."""


Ask = Callable[[str, str], Awaitable[Said]]
"""Asks a model: system text and question."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What older messages became, and how."""

    body: str
    how: str
    note: str = ""


async def summarise(
    older: Sequence[Shown], ask: Ask, *, piece_tokens: int, summary_tokens: int
) -> Summary:
    """Summarise messages. Raises what `ask` raises, but for what is permanent: then the fixed form
    is made without a model, and the note says why.
    """
    try:
        body, cut = await _reduced(list(record_lines(older)), ask, piece_tokens, summary_tokens)
    except Permanent as error:
        note = f"{error.error_code}: {error}"[:300]
        return Summary(extract(older, summary_tokens), "extracted", note)
    if not body.strip():
        why = "the model gave no summary"
        return Summary(extract(older, summary_tokens), "extracted", why)
    if cut or text_tokens(body) > summary_tokens:
        why = "the summary came out too long"
        return Summary(extract_summary(body, summary_tokens), "extracted", why)
    return Summary(body.strip(), "summarised")


async def _reduced(
    entries: list[str], ask: Ask, piece_tokens: int, summary_tokens: int
) -> tuple[str, bool]:
    system = instructions(summary_tokens)
    calls = 0
    while True:
        parts = pieces(iter(entries), piece_tokens)
        calls += len(parts)
        if calls > MOST_CALLS:
            raise Permanent(
                f"the record has {len(parts)} pieces of {piece_tokens} tokens",
                code="SUMMARY_TOO_MANY_PIECES",
            )
        try:
            said = [
                await ask(system, question(part, i, len(parts))) for i, part in enumerate(parts, 1)
            ]
        except Permanent as error:
            if error.error_code != OVERFLOW or piece_tokens // 2 < _LEAST_PIECE_TOKENS:
                raise
            piece_tokens //= 2
            continue
        if len(said) <= 1:
            return (said[0].text, said[0].cut) if said else ("", False)
        entries = [f"[summary of part {i}]\n{one.text}" for i, one in enumerate(said, 1)]
