"""Find which of the known names was meant: as another way to write it, a synonym, a slip."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import SequenceMatcher
from typing import Final, NamedTuple

SIMILAR: Final = 0.8
"""More alike than this is a slip of the pen."""
_CLEARLY: Final = 0.05
"""How much nearer the best has to be than the second."""
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SIGNS: Final = re.compile(r"[\s_.:/-]+")
_PREFIX: Final = re.compile(r"^(?:functions?|tools?|default_api|api)[.:/]", re.IGNORECASE)
_MAX_CHARS: Final = 200


class Match(NamedTuple):
    """The name that was meant, and how it was found: `form`, `synonym` or `similar`."""

    name: str
    how: str


def find_name(
    said: str, known: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> Match | None:
    """Return the known name that `said` means; None when there is none, or two as near."""
    names = list(known)
    if len(said) > _MAX_CHARS:
        return None
    plain = plain_name(said)
    forms = [n for n in names if plain_name(n) == plain]
    if len(forms) == 1:
        return Match(forms[0], "form")
    for word, name in (synonyms or {}).items():
        if plain_name(word) == plain and name in names:
            return Match(name, "synonym")
    near = sorted(((likeness(plain, plain_name(n)), n) for n in names), reverse=True)
    if not near or near[0][0] <= SIMILAR:
        return None
    if len(near) > 1 and near[0][0] - near[1][0] < _CLEARLY:
        return None
    return Match(near[0][1], "similar")


def plain_name(name: str) -> str:
    """Write a name without case, signs and prefix: `functions.readFile` is `read_file`."""
    spaced = _CAMEL.sub("_", _PREFIX.sub("", name.strip().strip("`'\"")))
    return _SIGNS.sub("_", spaced).strip("_").casefold()


def likeness(a: str, b: str) -> float:
    """Return how alike two names are, from 0 to 1."""
    if a == b:
        return 1.0
    return SequenceMatcher(None, a, b, autojunk=False).ratio()
