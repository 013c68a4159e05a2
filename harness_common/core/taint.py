"""What a run has touched, and when that makes its next call dangerous.

A model cannot tell instructions from data: once it has read what a stranger wrote, its wishes may
be the stranger's (SECURITY.md, "Injection"). Code remembers what was read, and decides by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from harness_common.core.message import Json

UNTRUSTED: Final = "untrusted"
"""Content from outside the tenant's control was read."""
PRIVATE: Final = "private"
"""What must not leave the tenant was read."""
OUTBOUND: Final = "outbound"
"""A channel was used that can carry data out of the tenant's control."""
ALL_MARKS: Final = frozenset({UNTRUSTED, PRIVATE, OUTBOUND})

MARKS: Final = "marks"
"""The key of `RunState.memo` that keeps the marks: part of every checkpoint, so that forks and
retries have them; only ever added to.
"""


def marks_in(memo: Mapping[str, Json]) -> frozenset[str]:
    """Read the marks that a run's memo keeps."""
    return frozenset(memo.get(MARKS, ())) & ALL_MARKS


def memo_with(memo: Mapping[str, Json], marks: Iterable[str]) -> Mapping[str, Json]:
    """Add marks to a memo; the same memo when there is nothing new."""
    before = frozenset(memo.get(MARKS, ()))
    after = before | (frozenset(marks) & ALL_MARKS)
    return memo if after == before else {**memo, MARKS: sorted(after)}


def third_of_two(held: frozenset[str], adds: frozenset[str]) -> str | None:
    """Name what a call would add to a run that holds the other two already (the rule of two)."""
    new = adds - held
    return ", ".join(sorted(new)) if new and (held | adds) >= ALL_MARKS else None
