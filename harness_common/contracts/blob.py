"""Where large bodies live. The default is a folder (`blobs.local`)."""

from __future__ import annotations

from typing import Protocol


class Blobs(Protocol):
    """A content-addressed store."""

    async def put(self, data: bytes) -> str:
        """Keep bytes durably; return their SHA-256 in hex."""
        ...

    async def get(self, digest: str) -> bytes:
        """Return the bytes; raises `FileNotFoundError`."""
        ...

    async def delete(self, digest: str, unused_s: float) -> bool:
        """Delete the bytes, unless somebody has `put` the same within `unused_s` seconds; return
        whether they are gone. Safe to repeat.
        """
        ...
