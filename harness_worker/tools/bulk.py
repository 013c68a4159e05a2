"""How a result that is too long for a prompt is shown: what it is, its beginning, and where to read
on. The whole of it is an artifact.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Final

from harness_common.core.message import Json

READER: Final = "artifact_read"
_LEAST_BYTES: Final = 200
_FRAME_BYTES: Final = 280
_KEYS: Final = 20
_SAMPLE: Final = 200
_SHOWN: Final = re.compile(
    r"\[Long result: .*?; the whole is artifact (?P<id>art_\w+)\.\]\n(?P<head>.*)"
    r"\n\[cut at \d+ of (?P<bytes>\d+) bytes; [^\n]*\]",
    re.DOTALL,
)


def shown(text: str, artifact_id: str, limit_bytes: int, *, can_read: bool) -> str:
    """Return at most about `limit_bytes` of a result: an outline, its beginning, and the cursor
    from which `artifact_read` goes on.
    """
    raw = text.encode()
    outline = _outline(text, len(raw))
    frame = len(outline.encode()) + _FRAME_BYTES
    head = _head(raw, max(_LEAST_BYTES, limit_bytes - frame))
    offset = len(head.encode())
    on = (
        f"{READER}(artifact_id={artifact_id!r}, offset={offset}) reads on"
        if can_read
        else f"it has no {READER} tool to read on"
    )
    return (
        f"[Long result: {outline}. Its first {offset} bytes follow; the whole is artifact "
        f"{artifact_id}.]\n{head}\n[cut at {offset} of {len(raw)} bytes; {on}]"
    )


def cut_of(text: str) -> dict[str, Json] | None:
    """Read what `shown` wrote: the artifact of the whole, its size and its beginning; None for any
    other text.
    """
    found = _SHOWN.fullmatch(text)
    if found is None:
        return None
    return {"artifact": found["id"], "bytes": int(found["bytes"]), "head": found["head"]}


def too_much(text: str, limit_bytes: int) -> str:
    """Return the beginning of what a reader of artifacts gave: it is an artifact already."""
    raw = text.encode()
    head = _head(raw, max(_LEAST_BYTES, limit_bytes - 200))
    return (
        f"{head}\n[cut at {len(head.encode())} of {len(raw)} bytes: ask for fewer bytes at a time "
        f"(max_bytes of about {limit_bytes // 2})]"
    )


def _head(raw: bytes, most: int) -> str:
    """Cut at the end of a line, if one ends in the last fifth."""
    head = raw[:most].decode(errors="ignore")
    end = head.rfind("\n")
    return head[: end + 1] if end > len(head) * 4 // 5 else head


def _outline(text: str, size: int) -> str:
    if text[:1] in "[{":
        try:
            return f"{_shape(json.loads(text))}, {size} bytes"
        except ValueError:
            pass
    lines = text.count("\n") + 1
    return f"text of {lines} {'line' if lines == 1 else 'lines'}, {size} bytes"


def _shape(value: Json) -> str:
    if isinstance(value, dict):
        fields = [f"{k} ({_kind(v)})" for k, v in list(value.items())[:_KEYS]]
        more = f" and {len(value) - _KEYS} more" if len(value) > _KEYS else ""
        return f"JSON object with {', '.join(fields)}{more}"
    if not isinstance(value, list):
        return "JSON value"
    sample = [v for v in value[:_SAMPLE] if isinstance(v, dict)]
    if not sample:
        return f"JSON array of {len(value)} items"
    fields_of = Counter(key for item in sample for key in item)
    names = ", ".join(str(name)[:60] for name, _ in fields_of.most_common(_KEYS))
    return f"JSON array of {len(value)} objects with {names}"


def _kind(value: Json) -> str:
    match value:
        case list():
            return f"array of {len(value)}"
        case dict():
            return f"object of {len(value)}"
        case str():
            return f"text of {len(value)} characters" if len(value) > 80 else "text"
        case None:
            return "null"
        case bool():
            return "boolean"
        case _:
            return "number"
