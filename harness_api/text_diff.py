"""Differences of texts line by line, in bounded time: whoever wrote the texts may be a stranger,
and `difflib` takes minutes for some of a few thousand lines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Final, Literal

MOST_LINES: Final = 500
"""Of what lies between the first and the last change, on either side: more is shown as a whole, the
old lines and then the new ones.
"""
_Change = tuple[Literal["replace", "delete", "insert", "equal"], int, int, int, int]


class _Known(difflib.SequenceMatcher[str]):
    """Groups changes that are known already."""

    def __init__(self, changes: list[_Change]) -> None:
        super().__init__(None, "", "")
        self._changes = changes

    def get_opcodes(self) -> list[_Change]:
        """Return them."""
        return self._changes


def diff_lines(before: Sequence[str], after: Sequence[str], context: int) -> list[str]:
    """Return what differs in the unified form without its head; nothing for equal texts."""
    if before == after:
        return []
    groups = _Known(_changes(before, after)).get_grouped_opcodes(context)
    return [line for group in groups for line in _hunk(before, after, group)]


def _changes(before: Sequence[str], after: Sequence[str]) -> list[_Change]:
    """Say what becomes of which lines, as `SequenceMatcher.get_opcodes` does."""
    head, most = 0, min(len(before), len(after))
    while head < most and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < most - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    old, new = before[head : len(before) - tail], after[head : len(after) - tail]
    if max(len(old), len(new)) > MOST_LINES:
        inner: list[_Change] = [("replace", 0, len(old), 0, len(new))]
    else:
        inner = list(difflib.SequenceMatcher(None, old, new).get_opcodes())
    ends = len(before) - tail, len(after) - tail
    same: list[_Change] = [
        ("equal", 0, head, 0, head),
        ("equal", ends[0], len(before), ends[1], len(after)),
    ]
    return [
        *(same[:1] if head else []),
        *((tag, i + head, j + head, k + head, n + head) for tag, i, j, k, n in inner),
        *(same[1:] if tail else []),
    ]


def _hunk(
    before: Sequence[str], after: Sequence[str], group: Sequence[tuple[str, int, int, int, int]]
) -> Iterator[str]:
    first, last = group[0], group[-1]
    yield f"@@ -{_span(first[1], last[2])} +{_span(first[3], last[4])} @@"
    for tag, i, j, k, n in group:
        if tag == "equal":
            yield from (f" {line}" for line in before[i:j])
            continue
        yield from (f"-{line}" for line in before[i:j])
        yield from (f"+{line}" for line in after[k:n])


def _span(start: int, stop: int) -> str:
    """Write which lines are meant, as `diff -u` does."""
    length = stop - start
    begin = start + 1 if length else start
    return str(begin) if length == 1 else f"{begin},{length}"
