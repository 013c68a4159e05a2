"""Parse the argument text of a tool call, which a model wrote and nobody checked.

Used by every provider whose wire carries arguments as text. What is not a JSON object is kept as it
came.
"""

from __future__ import annotations

import json
import re
from typing import Final

import orjson

from harness_common.core.message import Json

MAX_DEPTH: Final = 64
"""Deeper arguments would break writers that recurse; no honest tool needs them."""

_NUL: Final = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LONG_INTEGER: Final = re.compile(r"\d{19}")


def parse_arguments(text: str) -> tuple[Json, str | None]:
    """Return the arguments as an object and None, or {} and the text when it is not a JSON object.

    Refuses NaN, infinities, unpaired surrogates, a second value after the first, and nesting beyond
    `MAX_DEPTH`. NUL is taken out, because Postgres accepts it neither in text nor in jsonb. Long
    integers stay exact.
    """
    text = text.replace("\x00", "")
    candidate = _NUL.sub(r"\1", text) if "\\u0000" in text else text
    try:
        value = orjson.loads(candidate)
        if isinstance(value, dict) and _LONG_INTEGER.search(candidate):
            value = json.loads(
                candidate
            )  # orjson has just validated it, but makes a float of a long integer
    except (ValueError, RecursionError):
        return {}, text
    if not isinstance(value, dict) or too_deep(candidate):
        return {}, text
    return value, None


def is_object(text: str) -> bool:
    """Tell whether `text` is a whole JSON object."""
    return text.lstrip().startswith("{") and parse_arguments(text)[1] is None


def too_deep(text: str) -> bool:
    """Tell whether JSON text nests deeper than `MAX_DEPTH`, without recursion."""
    if text.count("{") + text.count("[") <= MAX_DEPTH:
        return False
    depth = 0
    for char in _STRING.sub("", text):
        if char in "{[":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif char in "}]":
            depth -= 1
    return False
