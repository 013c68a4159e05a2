"""Differences as people read them: line by line."""

from __future__ import annotations

import json

from harness_api.text_diff import diff_lines
from harness_common.core.message import Json

_CONTEXT_LINES = 3


def changed_lines(before: Json, after: Json) -> list[str]:
    """Compare two JSON values as indented text; return the lines of a unified diff."""
    old, new = (
        json.dumps(side, indent=2, ensure_ascii=False, sort_keys=True).splitlines()
        for side in (before, after)
    )
    return diff_lines(old, new, _CONTEXT_LINES)


def as_diff(text: str) -> list[str] | None:
    """Return the lines of a text that is a unified diff; None for any other text."""
    lines = text.splitlines()
    is_diff = any(line.startswith("@@ ") for line in lines) or (
        len(lines) > 1 and lines[0].startswith("--- ") and lines[1].startswith("+++ ")
    )
    return lines if is_diff else None
