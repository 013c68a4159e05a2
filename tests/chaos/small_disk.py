"""A small disk of memory for the growing tables, which a balloon can fill.

It is mounted in a mount namespace of the runner's own, so that it is gone with the last process
whatever happens. Only root can do that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
from pathlib import Path

_CLONE_NEWNS = 0x00020000
_SPARE_BYTES = 16 * 1024
_PIECE_BYTES = 8 * 1024 * 1024
_TRIES = 200


def own_mounts() -> str | None:
    """Give this process its own mounts; call before threads start. Returns why not, or None."""
    if os.geteuid() != 0:
        return "not root, so nothing can be mounted"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        return f"no own mount namespace: {os.strerror(ctypes.get_errno())}"
    made = subprocess.run(
        ["mount", "--make-rprivate", "/"], capture_output=True, text=True, check=False
    )
    return made.stderr.strip() or None if made.returncode else None


class SmallDisk:
    """A tmpfs at `path` that belongs to whoever runs Postgres."""

    def __init__(self, path: Path, uid: int, gid: int, size_mb: int = 256) -> None:
        self.path = path
        self._balloon = path / "balloon"
        path.mkdir()
        options = f"size={size_mb}m,mode=0700,uid={uid},gid={gid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True)
        (path / "tables").mkdir(mode=0o700)
        os.chown(path / "tables", uid, gid)

    def fill(self) -> int:
        """Leave no room but a few pages; returns the size of the balloon in bytes."""
        size = 0
        with self._balloon.open("wb") as file:
            for _ in range(_TRIES):
                space = os.statvfs(self.path)
                free = space.f_bavail * space.f_frsize - _SPARE_BYTES
                if free <= 0:
                    return size
                # Refused when somebody else took a page meanwhile: then less will do.
                with contextlib.suppress(OSError):
                    os.posix_fallocate(file.fileno(), size, min(free, _PIECE_BYTES))
                    size += min(free, _PIECE_BYTES)
        return size

    def make_room(self) -> None:
        """Let the balloon go."""
        self._balloon.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount; lazily, since a process that is about to end may still look at it."""
        subprocess.run(["umount", "-l", self.path], check=False, capture_output=True)
