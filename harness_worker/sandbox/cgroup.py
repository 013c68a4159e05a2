"""A memory limit for all processes of a cage together, where the kernel lets us set one.

Version 1 as a folder below our own; version 2 where the operator delegated one, since a group that
holds processes (ours) may not hand controllers down.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

_V1_ROOT = "/sys/fs/cgroup/memory"


@dataclass(frozen=True, slots=True)
class Group:
    """The folder of one slot."""

    folder: str
    is_v2: bool

    def enter(self) -> None:
        """Put the calling process in."""
        self._write("cgroup.procs", "0")

    def limit(self, memory_bytes: int) -> None:
        """Set how much memory its processes may have together, swap included."""
        if self.is_v2:
            self._write("memory.max", str(memory_bytes))
            self._write_if_there("memory.swap.max", "0")
            return
        # Each bound must not pass the other, whichever way they move.
        self._write_if_there("memory.memsw.limit_in_bytes", "-1")
        self._write("memory.limit_in_bytes", str(memory_bytes))
        self._write_if_there("memory.memsw.limit_in_bytes", str(memory_bytes))

    def kills(self) -> int:
        """Count the processes that the kernel has killed for want of memory."""
        name = "memory.events" if self.is_v2 else "memory.oom_control"
        with contextlib.suppress(OSError, ValueError):
            for line in self._read(name).splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
        return 0

    def remove(self) -> None:
        """Remove the folder, if nothing is in it."""
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)

    def _write(self, name: str, text: str) -> None:
        with open(os.path.join(self.folder, name), "w") as file:
            file.write(text)

    def _write_if_there(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError):
            self._write(name, text)

    def _read(self, name: str) -> str:
        with open(os.path.join(self.folder, name)) as file:
            return file.read()


def make(base: str | None, name: str) -> Group | None:
    """Make the group of a slot, or return None where that is not allowed."""
    is_v2 = base is not None and os.path.exists(os.path.join(base, "cgroup.controllers"))
    parent = base or _own_v1()
    if parent is None:
        return None
    group = Group(os.path.join(parent, name), is_v2)
    try:
        if is_v2:
            with open(os.path.join(parent, "cgroup.subtree_control"), "w") as file:
                file.write("+memory")
        os.makedirs(group.folder, exist_ok=True)
        group.limit(1 << 40)
    except OSError:
        group.remove()
        return None
    return group


def _own_v1() -> str | None:
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if "memory" in controllers.split(","):
                return _V1_ROOT + path.rstrip("/")
    return None
