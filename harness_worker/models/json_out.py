"""Write JSON for a provider: orjson, and the slow writer for the few values orjson refuses.

Used by the providers for request bodies and tool arguments.
"""

from __future__ import annotations

import json

import orjson

from harness_common.core.message import Json


def json_bytes(value: Json) -> bytes:
    """Return compact JSON in UTF-8.

    Integers beyond 64 bits stay exact and unpaired surrogates are escaped. Raises `ValueError` for
    NaN and infinities beside those, `TypeError` for what is no JSON value.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
