"""The JSON of the database: orjson on both sides, without what `jsonb` cannot hold.

NUL characters are stripped here; NaN and infinities become null in orjson and are refused earlier,
at the borders.
"""

from __future__ import annotations

import re
from typing import Final

import orjson

from harness_common.core.message import Json

_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def dumps(value: Json) -> bytes:
    """Write JSON bytes; datetimes and UUIDs as strings, NUL characters dropped."""
    out = orjson.dumps(value)
    return _NUL.sub(rb"\1", out) if b"\\u0000" in out else out


def dumps_text(value: Json) -> str:
    """Write JSON text."""
    return dumps(value).decode()


def loads(data: str | bytes) -> Json:
    """Read JSON."""
    return orjson.loads(data)
