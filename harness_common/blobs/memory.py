"""Artifacts in the memory of one process: for tests and notebooks, gone with it."""

from __future__ import annotations

import hashlib
import time
from math import inf


class MemoryBlobs:
    """A content-addressed store in a dict."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}
        self._put_at: dict[str, float] = {}

    async def put(self, data: bytes) -> str:
        """Keep bytes and return their SHA-256 in hex."""
        digest = hashlib.sha256(data).hexdigest()
        self._kept.setdefault(digest, bytes(data))
        self._put_at[digest] = time.monotonic()
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest; raises `FileNotFoundError`."""
        try:
            return self._kept[digest]
        except KeyError as error:
            raise FileNotFoundError(digest) from error

    async def delete(self, digest: str, unused_s: float) -> bool:
        """Delete the bytes unless they were put within `unused_s`; return whether they are gone."""
        if time.monotonic() - self._put_at.get(digest, -inf) < unused_s:
            return False
        self._kept.pop(digest, None)
        self._put_at.pop(digest, None)
        return True
