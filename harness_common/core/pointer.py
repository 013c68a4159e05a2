"""JSON pointers (RFC 6901): written for people, followed into values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from harness_common.core.message import Json

NOTHING: Final = object()
"""What a pointer gives that leads nowhere; JSON's null is a value like any other."""


def write(path: Iterable[str | int]) -> str:
    """Write a path as a pointer."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def follow(root: Json, pointer: str) -> Json | object:
    """Return what `pointer` leads to in `root`, or `NOTHING`."""
    if pointer == "":
        return root
    if not pointer.startswith("/"):
        return NOTHING
    node = root
    for raw in pointer[1:].split("/"):
        part = raw.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and part.isascii() and part.isdigit() and len(part) < 10:
            if int(part) >= len(node):
                return NOTHING
            node = node[int(part)]
        elif isinstance(node, dict) and part in node:
            node = node[part]
        else:
            return NOTHING
    return node
