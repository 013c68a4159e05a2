"""Artifacts as files named by their content, below the data folder.

The name is the SHA-256 of the bytes, so the same bytes are kept once and a name never means
something else later.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
import time
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

    async def delete(self, digest: str, unused_s: float) -> bool:
        """Delete the bytes unless they were put within `unused_s`; return whether they are gone."""
        return await asyncio.to_thread(self._delete, digest, unused_s)

    def _delete(self, digest: str, unused_s: float) -> bool:
        """Take the file aside first: whoever puts the same bytes meanwhile either touched it, and
        it comes back, or writes it anew.
        """
        target = self.path(digest)
        aside = target.with_name(f".gone-{digest}")
        try:
            if time.time() - target.stat().st_mtime < unused_s:
                return False
            target.rename(aside)
        except FileNotFoundError:
            aside.unlink(missing_ok=True)
            return True
        if time.time() - aside.stat().st_mtime < unused_s:
            with contextlib.suppress(FileExistsError):
                os.link(aside, target)
            aside.unlink(missing_ok=True)
            return False
        aside.unlink(missing_ok=True)
        return True

    def _put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        target = self.path(digest)
        with contextlib.suppress(FileNotFoundError):
            os.utime(target)  # who deletes what is old sees that it is wanted
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
