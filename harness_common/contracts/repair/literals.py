"""Read a Python dict that a model wrote in the place of JSON, without running anything."""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from typing import Final

from harness_common.core.message import Json

_ODD_ESCAPE: Final = re.compile(r"\\[^\\'\"nrtbfu]")
_MARKS: Final = ("'", "True", "False", "None")


def python_value(text: str) -> dict[str, Json] | None:
    """Return the dict that a text is in Python; None when it is none, or has what JSON has not.

    Two strings side by side, which Python joins, are more likely a quote that nobody escaped; and
    of escapes only those are taken that mean the same in JSON.
    """
    if _ODD_ESCAPE.search(text) or not any(mark in text for mark in _MARKS) or _joins_strings(text):
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, dict) and _is_json(value) else None


def _joins_strings(text: str) -> bool:
    last = tokenize.OP
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in {tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT}:
                continue
            if token.type == last == tokenize.STRING:
                return True
            last = token.type
    except (tokenize.TokenError, SyntaxError):
        return True
    return False


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) for k in value) and all(map(_is_json, value.values()))
    if isinstance(value, list):
        return all(map(_is_json, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, str | bool | int)
