"""Artifacts as files named by their content, below the data folder.

The name is the SHA-256 of the bytes, so the same bytes are kept once and a name never means
something else later.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path


class LocalBlobs:
    """A content-addressed store in a folder that all processes of this machine share."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, digest: str) -> Path:
        """Return where the bytes of a digest lie."""
        return self._root / digest[:2] / digest[2:4] / digest

    async def put(self, data: bytes) -> str:
        """Keep bytes and return their SHA-256 in hex. Durable when it returns; safe to repeat."""
        return await asyncio.to_thread(self._put, data)

    async def get(self, digest: str) -> bytes:
        """Return the bytes of a digest; raises `FileNotFoundError`."""
        return await asyncio.to_thread(self.path(digest).read_bytes)

    def _put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        target = self.path(digest)
        if target.exists():
            return digest
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return digest
