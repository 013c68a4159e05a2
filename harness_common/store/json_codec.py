"""The JSON of the database: orjson on both sides, without what `jsonb` cannot hold.

NUL characters are dropped and lone surrogates replaced; integers beyond 64 bits take the slower way
through the standard
library, so that no value that a model or tool may send stops a commit. NaN and infinities become
null.
"""

from __future__ import annotations

import json
import math
import re
from typing import Final

import orjson

from harness_common.core.message import Json

_NUL: Final = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def dumps(value: Json) -> bytes:
    """Write JSON bytes; datetimes and UUIDs as strings."""
    try:
        out = orjson.dumps(value)
    except TypeError:
        clean = _storable(value)
        out = json.dumps(clean, ensure_ascii=False, separators=(",", ":"), default=_other).encode()
    return _NUL.sub(rb"\1", out) if b"\\u0000" in out else out


def dumps_text(value: Json) -> str:
    """Write JSON text."""
    return dumps(value).decode()


def loads(data: str | bytes) -> Json:
    """Read JSON."""
    return orjson.loads(data)


def storable_text(text: str) -> str:
    """Return text that Postgres can hold: no NUL, no lone surrogates."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _storable(value: Json) -> Json:
    """Replace what Postgres would refuse, all the way down."""
    if isinstance(value, str):
        return storable_text(value)
    if isinstance(value, dict):
        return {_storable(str(k)): _storable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _other(value: object) -> Json:
    """Write what only orjson knows (datetimes, UUIDs, enums) as orjson does; raises `TypeError`."""
    return orjson.loads(orjson.dumps(value))
