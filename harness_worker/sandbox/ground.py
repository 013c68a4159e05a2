"""What cages stand on: users, work folders, memory groups, as far as this machine has them for us.

As root each slot has a user of its own, and a mount namespace private to the jailer gives each call
of tier B a tmpfs. An ordinary user has itself and a folder.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Callable
from typing import Any

from harness_worker.sandbox import cgroup, kernel

_BLOCKS = 64
_BASES = (1_900_000_000, 62_000)
"""The first user id of all slots: far from real users and from containers' ranges, or, where those
are not mapped, among the ids that systemd gives out for the moment."""
_MOUNT_POINTS = ("/mnt", "/media", "/srv")


class Ground:
    """Users, folders and groups of the slots of one jailer."""

    def __init__(self, folder: str, block: int, lock: socket.socket) -> None:
        self.folder = folder
        self.has_quota = False
        self.notes: list[str] = []
        self._block, self._lock = block, lock
        self._uid_base: int | None = None
        self._mounts: str | None = None
        self._groups: dict[int, cgroup.Group | None] = {}

    @classmethod
    def prepare(cls, config: dict[str, Any]) -> Ground:
        """Take a block of slots that no other jailer has, and set up what is allowed."""
        block, lock = _take_block()
        ground = cls(config["folder"], block, lock)
        slots = range(config["slots"])
        if os.geteuid() == 0:
            ground._uid_base = _uid_base(config["uid_base"]) + block * len(slots)
            ground._try_mounts(config["expose"])
            for slot in slots:
                ground.sweep(slot)  # what a jailer that was killed may have left
        for slot in slots:
            name = f"harness-{block}-{slot}"
            ground._groups[slot] = cgroup.make(config["cgroup"], name)
        return ground

    def facts(self) -> dict[str, Any]:
        """Tell the worker what there is."""
        return {
            "own_users": self._uid_base is not None,
            "memory_groups": all(self._groups.values()),
            "disk_quota": self.has_quota,
            "notes": self.notes,
        }

    def group(self, slot: int) -> cgroup.Group | None:
        """Return the memory group of a slot, where there are some."""
        return self._groups[slot]

    def drop(self, slot: int) -> None:
        """Become the slot's user for good; raises `PermissionError` where that would be root."""
        if self._uid_base is not None:
            uid = self._uid_base + slot
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        if 0 in (*os.getresuid(), *os.getresgid()):
            raise PermissionError("a tool is never started as root")

    def work_folder(self, slot: int, size_bytes: int) -> str:
        """Make an empty work folder for a cage without namespaces."""
        uid = None if self._uid_base is None else self._uid_base + slot
        path = os.path.join(self._mounts or self.folder, str(slot))
        self.remove_work(slot, path)
        os.mkdir(path, 0o700)
        if self._mounts is not None:
            options = f"size={size_bytes},mode=0700,uid={uid},gid={uid},nr_inodes=20000"
            kernel.mount("work", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        elif uid is not None:
            os.chown(path, uid, uid)
        return path

    def remove_work(self, slot: int, path: str) -> None:
        """Remove a work folder and all in it."""
        del slot
        if self._mounts is not None:
            with contextlib.suppress(OSError):
                kernel.unmount(path)
            with contextlib.suppress(OSError):
                os.rmdir(path)
            return
        shutil.rmtree(path, onerror=_open_and_retry)

    def sweep(self, slot: int) -> None:
        """Kill whatever runs as the slot's user, in whatever group; nothing without own users."""
        if self._uid_base is None:
            return
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                self.drop(slot)
                os.kill(-1, signal.SIGKILL)  # all that this user may signal: its own
            os._exit(0)
        os.waitpid(pid, 0)

    def clear(self) -> None:
        """Give back what was made."""
        for group in self._groups.values():
            if group is not None:
                group.remove()

    def _try_mounts(self, paths: list[str]) -> None:
        point = next((p for p in _MOUNT_POINTS if os.path.isdir(p)), None)
        try:
            if point is None:
                raise OSError("there is no /mnt")
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
            expose(paths)
            kernel.mount("cages", point, "tmpfs", kernel.MS_NOSUID, "mode=0711,size=1m")
        except OSError as error:
            self.notes.append(f"no private mounts ({error}): disk use is watched, not capped")
            os.chmod(self.folder, 0o711)  # noqa: S103 - passed through, not listed
            return
        self._mounts, self.has_quota = point, True


def _take_block() -> tuple[int, socket.socket]:
    """Take a number that no other jailer of this machine has; it is free again when we end."""
    for block in range(_BLOCKS):
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            lock.bind(f"\0harness-cages-{os.geteuid()}-{block}")
            return block, lock
        lock.close()
    raise RuntimeError(f"all {_BLOCKS} blocks of slots are taken")


def _uid_base(wanted: int | None) -> int:
    for base in (wanted,) if wanted is not None else _BASES:
        if base > 0 and _is_mapped(base) and _is_mapped(base + 2_047):
            return base
    raise RuntimeError("no user ids for cages: set HARNESS_SANDBOX__UID_BASE to mapped, unused ids")


def _is_mapped(uid: int) -> bool:
    with open("/proc/self/uid_map") as file:
        spans = [tuple(map(int, line.split())) for line in file]
    return any(first <= uid < first + count for first, _, count in spans)


def expose(paths: list[str]) -> None:
    """Let other users reach `paths` although a folder above is closed (an interpreter below /root).

    In this mount namespace alone, the closed folder is replaced by one that holds just them.
    """
    closed: dict[str, list[str]] = {}
    for path in map(os.path.realpath, paths):
        above = _closed_above(path)
        if above is not None:
            closed.setdefault(above, []).append(path)
    for folder, wanted in closed.items():
        kept = {p: os.open(p, os.O_PATH) for p in wanted if not _is_below_any(p, wanted)}
        kernel.mount("closed", folder, "tmpfs", kernel.MS_NOSUID, "mode=0755,size=1m")
        for path, fd in kept.items():
            is_folder = os.path.isdir(f"/proc/self/fd/{fd}")
            os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
            if not is_folder:
                os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
            kernel.mount(f"/proc/self/fd/{fd}", path, flags=kernel.MS_BIND | kernel.MS_REC)
            os.close(fd)


def _closed_above(path: str) -> str | None:
    """Return the first folder on the way to `path` that others may not enter."""
    parts = path.strip("/").split("/")
    for end in range(1, len(parts)):
        folder = "/" + "/".join(parts[:end])
        if not os.stat(folder).st_mode & 0o001:
            return folder
    return None


def _is_below_any(path: str, others: list[str]) -> bool:
    return any(path != other and path.startswith(other.rstrip("/") + "/") for other in others)


def _open_and_retry(function: Callable[[str], object], path: str, info: object) -> None:
    """Remove what a tool has closed to us; what is not there any more is no problem."""
    del info
    with contextlib.suppress(OSError):
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700, follow_symlinks=False) if os.path.isdir(path) else None
        function(path)
