"""The list of repairs: what was changed where, from what, to what.

It is complete: replaying it over what was said gives what was read (`replay`). Repairs of the text
come first; each holds the text before and after. Then repairs of the value, each at a JSON pointer.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core import pointer
from harness_common.core.message import Json

ABSENT: Final = pointer.NOTHING
"""What stands where nothing was before, or is afterwards; null is a value like any other."""
MAX_SHOWN: Final = 32
"""Repairs of one answer that its event shows; more are counted."""
MAX_SHOWN_CHARS: Final = 300

TEXT: Final = "text"
NAME: Final = "name"
"""The place of a native call's name, which is no part of its arguments."""
GUESSES: Final = frozenset(
    {
        "syntax",
        "inner_quotes",
        "closed",
        "number_in_words",
        "out_of_range",
        "enum_similar",
        "enum_unknown",
        "name_similar",
        "field_similar",
        "wrapped_in_list",
        "default",
    }
)
"""Kinds of repair that may be mistaken: none is done to a call that writes."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One change. `at` is a JSON pointer into the value, `text` for the text that was said, or
    `name` for the name of a call.
    """

    at: str
    kind: str
    before: Json
    after: Json

    @property
    def is_guess(self) -> bool:
        """Tell whether another reading was possible."""
        return self.kind in GUESSES


class Log:
    """Repairs in the order done."""

    def __init__(self) -> None:
        self.repairs: list[Repair] = []

    def text(self, kind: str, before: str, after: str) -> str:
        """Note a change of the text and return the text after it."""
        if before != after:
            self.repairs.append(Repair(TEXT, kind, before, after))
        return after

    def value(self, at: str, kind: str, before: Json, after: Json) -> Json:
        """Note a change of the value at a pointer and return what is there now."""
        self.repairs.append(Repair(at, kind, _copy(before), _copy(after)))
        return after

    def __len__(self) -> int:
        return len(self.repairs)


def moved(repairs: Iterable[Repair], prefix: str) -> list[Repair]:
    """Return repairs of a value as those of a larger one, in which it is at `prefix`."""
    return [
        r if r.at == TEXT else Repair(prefix + r.at, r.kind, r.before, r.after) for r in repairs
    ]


def replay(said: Json, repairs: Sequence[Repair], read: Callable[[str], Json]) -> Json:
    """Do the repairs again. `said` is a text, which `read` reads, or a value.

    Raises `ValueError` when one of them is not about what is there.
    """
    value, is_text = said, isinstance(said, str)
    for one in repairs:
        if one.at == NAME:
            continue
        if one.at == TEXT:
            if not is_text or value != one.before:
                raise ValueError(f"the text is not what {one.kind} began with")
            value = one.after
            continue
        value, is_text = (read(value) if is_text else copy.deepcopy(value)), False
        value = _put(value, one)
    return read(value) if is_text else value


def _put(root: Json, one: Repair) -> Json:
    found = pointer.follow(root, one.at)
    if found != one.before:
        raise ValueError(f"{one.at} is not what {one.kind} began with")
    if one.at == "":
        return one.after
    above, _, last = one.at.rpartition("/")
    parent: Json = pointer.follow(root, above)
    key = int(last) if isinstance(parent, list) else last.replace("~1", "/").replace("~0", "~")
    if one.after is ABSENT:
        del parent[key]
    else:
        parent[key] = copy.deepcopy(one.after)
    return root


def to_json(repairs: Sequence[Repair], clean: Callable[[str], str] = str) -> list[Json]:
    """Write repairs for an event: so many at most, values cut; `clean` blots secrets out."""
    return [
        {
            "at": clean(r.at[:MAX_SHOWN_CHARS]),
            "kind": r.kind,
            "before": _shown(r.before, clean),
            "after": _shown(r.after, clean),
        }
        for r in repairs[:MAX_SHOWN]
    ]


def counts(repairs: Iterable[Repair]) -> dict[str, int]:
    """Count repairs by kind."""
    return dict(Counter(r.kind for r in repairs))


def _copy(value: Json) -> Json:
    return value if value is ABSENT else copy.deepcopy(value)


def _shown(value: Json, clean: Callable[[str], str]) -> Json:
    if value is ABSENT:
        return None
    if value is None or isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = clean(text)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    return f"{text[:MAX_SHOWN_CHARS]}… ({len(text)} characters)"
