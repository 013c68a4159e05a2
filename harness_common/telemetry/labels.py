"""Labels that cannot grow: a metric with a label per tenant, run or text of a model is a leak."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

OTHER: Final = "other"
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,39}")


class Bounded:
    """The values of one label: those that are known, and at most `most` in all; any more is
    `other`.
    """

    def __init__(self, most: int, known: Iterable[str] = ()) -> None:
        self._seen = dict.fromkeys(known)
        self._most = most

    def __call__(self, value: str) -> str:
        """Return the value, or `other` when it is one too many or no plain word."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._most or _WORD.fullmatch(value) is None:
            return OTHER
        self._seen[value] = None
        return value
