"""What differs between two states of a run: path by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from harness_common.core.message import Json

MOST: Final = 500
_NONE: Final = object()


@dataclass(frozen=True, slots=True)
class Change:
    """One value that was added, taken away or changed."""

    path: str
    kind: str
    before: Json
    after: Json


def changes(before: Json, after: Json) -> list[Change]:
    """List what has changed, at most `MOST`."""
    found: list[Change] = []
    for change in _compare("", before, after):
        found.append(change)
        if len(found) == MOST:
            break
    return found


def _compare(path: str, before: object, after: object) -> Iterator[Change]:
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}, key=str):
            where = f"{path}.{key}" if path else str(key)
            yield from _compare(where, before.get(key, _NONE), after.get(key, _NONE))
    elif isinstance(before, list) and isinstance(after, list):
        for index in range(max(len(before), len(after))):
            old = before[index] if index < len(before) else _NONE
            new = after[index] if index < len(after) else _NONE
            yield from _compare(f"{path}[{index}]", old, new)
    elif before is _NONE:
        yield Change(path, "added", None, after)
    elif after is _NONE:
        yield Change(path, "removed", before, None)
    else:
        yield Change(path, "changed", before, after)
