"""Where a conversation may be cut, how much of its end stays word for word, and which results are
stale.

A round is one thing that the model said and all that follows from it. Its tool calls, their results
and its thinking are never parted: a cut lies only between rounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

from harness_common.core.context_view import Shown, is_summary
from harness_common.core.message import ToolResult, ToolUse
from harness_common.core.tokens import BYTES_PER_TOKEN, message_tokens, text_bytes

STALE: Final = "[Superseded: the same call was made again later; its newer result stands below.]"
ARTIFACT: Final = re.compile(r"art_[0-9a-f]{32}")
_LEAST_RESULT_TOKENS: Final = 100
_NAMED_ARTIFACTS: Final = 20


def rounds(shown: Sequence[Shown]) -> list[int]:
    """Return where each round begins, in order.

    A round begins with the words of a user that lead to an answer, or with the answer; what was
    never answered yet is the last round. An answer that goes on after a pause belongs to the round
    of the first part, if the provider's own material is in that: the rest of it may be in this.
    """
    starts: list[int] = []
    asked = False  # the round has words of a user and no answer yet
    for i, one in enumerate(shown):
        role = one.message.role
        if role == "user" and not is_summary(one.message):
            if not asked:
                starts.append(i)
            asked = True
        elif role == "assistant":
            if not asked and not (i and _goes_on(shown[i - 1])):
                starts.append(i)
            asked = False
        elif not starts:
            starts.append(i)
    return starts


def _goes_on(one: Shown) -> bool:
    return one.message.role == "assistant" and one.message.extra is not None


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the older part ends, and which results of the newer part are shown in other words."""

    at: int
    """Index of the first message that stays."""
    rounds_kept: int
    edits: Mapping[str, str] = field(default_factory=dict)
    stale: Mapping[str, str] = field(default_factory=dict)
    """All stale results, also those of the older part."""


def choose_cut(
    shown: Sequence[Shown], *, rounds_kept: int, target_tokens: int, reads: Set[str] = frozenset()
) -> Cut:
    """Keep the last `rounds_kept` rounds, fewer where they take more than `target_tokens`; the
    last one stays, with its results shortened as far as it takes. Words of a user that are too
    long even alone are of the older part.

    `reads` are the tools whose equal calls make an older result stale.
    """
    starts = rounds(shown)
    if not starts:
        return Cut(len(shown), 0)
    stale = stale_results(shown, reads)
    kept = min(rounds_kept, len(starts))
    while kept > 1 and _tokens(shown[starts[-kept] :], stale) > target_tokens:
        kept -= 1
    at = starts[-kept]
    places = {one.origin for one in shown[at:]}
    edits = {k: v for k, v in stale.items() if k.rpartition(".")[0] in places}
    over = _tokens(shown[at:], edits) - target_tokens
    if over > 0 and all(one.message.role == "user" for one in shown[at:]):
        return Cut(len(shown), 0, {}, stale)
    if over > 0:
        edits |= shortened(shown[at:], edits, over)
    return Cut(at, kept, edits, stale)


def _tokens(shown: Sequence[Shown], edits: Mapping[str, str]) -> int:
    return sum(message_tokens(one.message) - _saved(one, edits) for one in shown)


def _saved(one: Shown, edits: Mapping[str, str]) -> int:
    return sum(
        (text_bytes(b.content) - text_bytes(edits[key])) // BYTES_PER_TOKEN
        for i, b in enumerate(one.message.content)
        if isinstance(b, ToolResult) and (key := f"{one.origin}.{i}") in edits
    )


def stale_results(shown: Sequence[Shown], reads: Set[str]) -> dict[str, str]:
    """Find the results of reads that an equal call has answered anew since, and the note that takes
    their place.
    """
    newest: dict[tuple[str, str], str] = {}
    stale: dict[str, str] = {}
    asked: dict[str, ToolUse] = {}
    for one in shown:
        if uses := one.message.tool_uses():
            asked = {use.id: use for use in uses}
        for i, block in enumerate(one.message.content):
            if not isinstance(block, ToolResult) or not one.origin:
                continue
            use = asked.get(block.tool_use_id)
            if use is None or use.name not in reads or block.is_error:
                continue
            key, place = (use.name, _canonical(use)), f"{one.origin}.{i}"
            if (older := newest.get(key)) is not None:
                stale[older] = STALE
            newest[key] = place
    return stale


def _canonical(use: ToolUse) -> str:
    return use.raw or json.dumps(use.input, sort_keys=True, separators=(",", ":"), default=str)


def shortened(shown: Sequence[Shown], edits: Mapping[str, str], over_tokens: int) -> dict[str, str]:
    """Cut the longest results until `over_tokens` are saved, or none is long any more."""
    found = [
        (text_bytes(b.content), f"{one.origin}.{i}", b.content)
        for one in shown
        for i, b in enumerate(one.message.content)
        if isinstance(b, ToolResult) and one.origin and f"{one.origin}.{i}" not in edits
    ]
    out: dict[str, str] = {}
    over_bytes = over_tokens * BYTES_PER_TOKEN
    for size, place, content in sorted(found, key=lambda f: (-f[0], f[1])):
        room = max(_LEAST_RESULT_TOKENS * BYTES_PER_TOKEN, size - over_bytes)
        if over_bytes <= 0 or room >= size:
            break
        out[place] = cut_text(content, room)
        over_bytes -= size - text_bytes(out[place])
    return out


def cut_text(text: str, most_bytes: int) -> str:
    """Cut a text to about `most_bytes`, its beginning and its end, and say how much is gone.

    References to artifacts that stood in what is cut are named, so that it can be read again.
    """
    raw = text.encode("utf-8", "replace")
    if len(raw) <= most_bytes:
        return text
    head = max(0, most_bytes * 2 // 3)
    tail = max(0, most_bytes - head)
    end = len(raw) - tail
    first, last = raw[:head].decode(errors="ignore"), raw[end:].decode(errors="ignore")
    gone = raw[head:end].decode(errors="ignore")
    kept = dict.fromkeys(a for a in ARTIFACT.findall(gone) if a not in first and a not in last)
    named = f"; it named {', '.join(list(kept)[:_NAMED_ARTIFACTS])}" if kept else ""
    return f"{first}\n[… {end - head} bytes left out here{named} …]\n{last}"
