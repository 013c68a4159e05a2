"""What changed between two versions of an agent: field by field, long texts line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from harness_api.schemas.agents import AgentChange
from harness_api.text_diff import diff_lines
from harness_common.contracts.agent import AgentSpec
from harness_common.core.message import Json

_CONTEXT_LINES: Final = 2
_ABSENT: Final = object()


def diff_specs(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[AgentChange]:
    """List what differs between two definitions, as stored, in the order of their fields.

    Fields that one of them was stored without count with their defaults, as they do in runs.
    """
    return list(_changes("", _whole(before), _whole(after)))


def _whole(spec: Mapping[str, Any]) -> dict[str, Any]:
    return AgentSpec.model_validate(spec).model_dump(mode="json")


def _changes(path: str, before: Json, after: Json) -> Iterator[AgentChange]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            inner = f"{path}.{name}" if path else name
            yield from _changes(inner, before.get(name, _ABSENT), after.get(name, _ABSENT))
        return
    what = "added" if before is _ABSENT else "removed" if after is _ABSENT else "changed"
    old, new = (None if side is _ABSENT else side for side in (before, after))
    yield AgentChange(path=path, change=what, before=old, after=new, lines=_lines(old, new))


def _lines(before: Json, after: Json) -> list[str] | None:
    """Return the changed lines of a text in the unified form, without its head; None for what is no
    text of several lines.
    """
    if not (isinstance(before, str) and isinstance(after, str)) or "\n" not in before + after:
        return None
    return diff_lines(before.splitlines(), after.splitlines(), _CONTEXT_LINES)
