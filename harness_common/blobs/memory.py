"""Artifacts in the memory of one process: for tests and notebooks, gone with it."""

from __future__ import annotations

import hashlib


class MemoryBlobs:
    """A content-addressed store in a dict."""

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    async def put(self, data: bytes) -> str:
        """Keep bytes and return their SHA-256 in hex."""
        digest = hashlib.sha256(data).hexdigest()
        self._kept.setdefault(digest, bytes(data))
        return digest

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest; raises `FileNotFoundError`."""
        try:
            return self._kept[digest]
        except KeyError as error:
            raise FileNotFoundError(digest) from error
