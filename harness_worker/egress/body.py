"""Reads an answer's body to a bound, also when it is compressed."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import httpx

_PLAIN = frozenset({"", "identity"})
_KNOWN = frozenset({"gzip", "x-gzip", "deflate"})


class BadBody(Exception):
    """The body cannot be read: an encoding that was not asked for, or damaged bytes."""


@dataclass(frozen=True, slots=True)
class Body:
    """What was read."""

    data: bytes
    truncated: bool


async def read_body(response: httpx.Response, max_bytes: int) -> Body:
    """Read at most `max_bytes` of a streamed answer, unpacked here with the same bound: a
    compressed body may unpack to far more than was sent. Raises `BadBody` and what httpx raises.
    """
    encoding = response.headers.get("content-encoding", "").strip().lower()
    if encoding not in _PLAIN | _KNOWN:
        raise BadBody(f"answered in the encoding {encoding[:40]!r}, which was not asked for")
    # 32 + 15: zlib tells gzip and zlib headers apart by itself.
    unpack = None if encoding in _PLAIN else zlib.decompressobj(32 + zlib.MAX_WBITS)
    body = bytearray()
    async for chunk in response.aiter_raw():
        room = max_bytes + 1 - len(body)
        try:
            body += unpack.decompress(chunk, room) if unpack else chunk[:room]
        except zlib.error as problem:
            raise BadBody("sent a damaged body") from problem
        if len(body) > max_bytes:
            break
    return Body(bytes(body[:max_bytes]), len(body) > max_bytes)
