"""Frames between a worker and a cage: a head of JSON and a body of bytes, both of stated length.

What comes out of a cage is hostile until it has been checked, so a reader names its bounds.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

HEAD = struct.Struct(">II")
MAX_JSON_BYTES = 8 * 1024 * 1024

Head = dict[str, Any]


class BadFrame(ValueError):
    """What was sent is no frame, or larger than allowed."""


def pack(head: Head, body: bytes = b"") -> bytes:
    """Write a frame."""
    text = json.dumps(head).encode()
    return HEAD.pack(len(text), len(body)) + text + body


def sizes(prefix: bytes, max_body_bytes: int) -> tuple[int, int]:
    """Read the two lengths; raises `BadFrame` when they are out of bounds."""
    text, body = HEAD.unpack(prefix)
    if text > MAX_JSON_BYTES or body > max_body_bytes:
        raise BadFrame(f"a frame of {text} + {body} bytes")
    return text, body


def parse(text: bytes) -> Head:
    """Read the JSON of a frame; raises `BadFrame`."""
    try:
        head = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame("the head of a frame is not JSON") from error
    if not isinstance(head, dict):
        raise BadFrame("the head of a frame is not an object")
    return head


def read(take: Callable[[int], bytes], max_body_bytes: int) -> tuple[Head, bytes]:
    """Read a frame with a function that returns exactly so many bytes."""
    text, body = sizes(take(HEAD.size), max_body_bytes)
    return parse(take(text)), take(body)
