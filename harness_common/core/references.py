"""Finds arguments that stand for a result which is not there yet: "<result of call 1>".

A model that asks for several calls at once at times writes a placeholder where the result of one
should go into another. Such a call is not made: it is told to wait for the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core.message import Json

RESULT_NOT_READY: Final = "RESULT_NOT_READY"
_LONGEST: Final = 160
"""Characters of a text that may be a placeholder: in a longer one it is part of what is written."""
_SHORTEST_ID: Final = 5

_RESULT = r"(results?|outputs?|responses?|return(ed)?( value)?|answers?|values?|content|ids?|data)"
_CALL = (
    r"((tool|function|previous|prior|last|first|second|above|earlier) ?)*"
    r"(calls?|tools?|functions?|steps?|search|query|lookup|request)"
)
_OPEN, _CLOSE = r"(<+|\[+|\{+|\$\{|\$\()", r"(>+|\]+|\}+|\))"
_PLACEHOLDER: Final = re.compile(
    rf"{_OPEN}\s*(the |insert |use |put |to be |filled |replace |with |from )*"
    rf"({_RESULT} (of|from|by|returned by|in) ((the|my|your) )?[\w .:'\"#-]{{1,60}}"
    rf"|{_CALL}[ _-]?#?\d* ?('s)? {_RESULT}"
    rf"|(previous|prior|last|above|earlier|preceding)[ _-]{_RESULT}"
    rf"|{_RESULT}[ _]?(of|from|#)?[ _]?(call|step|tool|the )?[ _]?\d{{1,2}}"
    rf"|(call|step|tool)[ _]?\d{{1,2}}[._ ]?({_RESULT})?(\.\w+)*)\s*{_CLOSE}",
    re.IGNORECASE,
)
_WHOLE: Final = re.compile(
    rf"^\s*(the )?({_RESULT} (of|from) ((the|my) )?{_CALL}[ #_]*\d*( above)?"
    rf"|(PREVIOUS|LAST|PRIOR)_{_RESULT}|{_RESULT}_(OF|FROM)_\w+"
    rf"|\$?{_RESULT}_?\d{{1,2}}|\$\d\.[a-z]\w*|(call|step|tool)_\d{{1,2}}\.({_RESULT}|url|path|text))\s*$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An argument that stands for a result."""

    field: str
    text: str


def unresolved(arguments: Json, siblings: Sequence[str] = ()) -> Reference | None:
    """Return the first argument that refers to a result which is not there; None if all are whole.

    `siblings` are the provider's ids of the other calls of the same answer: an argument that is one
    of them means its result.
    """
    ids = [one for one in siblings if len(one) >= _SHORTEST_ID]
    for field, text in _texts("", arguments):
        if len(text) > _LONGEST:
            continue
        if _PLACEHOLDER.search(text) or _WHOLE.match(text) or _names_call(text, ids):
            return Reference(field, text)
    return None


def told(tool: str, found: Reference) -> str:
    """Word the refusal for the model."""
    return (
        f"Tool {tool} was not run: `{found.field or 'arguments'}` is {found.text[:80]!r}, which "
        "stands for a result that is not there yet. Calls of one answer do not see each other's "
        "results. Wait for the result, then call this tool with the value itself."
    )


def _names_call(text: str, ids: Sequence[str]) -> bool:
    bare = text.strip().strip("<>{}[]$()\"'` ")
    return any(bare in {one, f"{one}.result", f"{one}.output"} for one in ids)


def _texts(field: str, value: Json) -> Iterator[tuple[str, str]]:
    match value:
        case Mapping():
            for key, part in value.items():
                yield from _texts(f"{field}.{key}" if field else str(key), part)
        case list() | tuple():
            for i, part in enumerate(value):
                yield from _texts(f"{field}[{i}]", part)
        case str():
            yield field, value
