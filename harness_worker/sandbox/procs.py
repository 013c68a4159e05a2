"""What /proc says of the processes of a cage: which they are, what they use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Proc:
    """One line of `/proc/<pid>/stat`."""

    pid: int
    parent: int
    group: int
    cpu_s: float
    """Its own and that of children it has waited for."""
    memory_bytes: int
    is_zombie: bool


@dataclass(frozen=True, slots=True)
class Usage:
    """What the processes of a cage use together."""

    processes: int
    cpu_s: float
    memory_bytes: int


def scan() -> dict[int, Proc]:
    """Read all processes."""
    found: dict[int, Proc] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[int(name)] = _read(int(name))
    return found


def _read(pid: int) -> Proc:
    with open(f"/proc/{pid}/stat", "rb") as file:
        f = file.read().rpartition(b")")[2].split()
    cpu_s = sum(map(int, f[11:15])) * _TICK_S
    return Proc(pid, int(f[1]), int(f[2]), cpu_s, int(f[21]) * _PAGE_BYTES, f[0] == b"Z")


def below(procs: dict[int, Proc], roots: Iterable[int], group: int | None) -> list[Proc]:
    """Return the processes that descend from `roots`, and those of a process group."""
    wanted = {pid for pid in roots if pid in procs}
    todo, children = list(wanted), dict[int, list[int]]()
    for proc in procs.values():
        children.setdefault(proc.parent, []).append(proc.pid)
        if group is not None and proc.group == group and proc.pid not in wanted:
            wanted.add(proc.pid)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in wanted:
                wanted.add(child)
                todo.append(child)
    return [procs[pid] for pid in wanted]


def usage(procs: Iterable[Proc]) -> Usage:
    """Add up."""
    count, cpu_s, memory = 0, 0.0, 0
    for proc in procs:
        count += not proc.is_zombie
        cpu_s += proc.cpu_s
        memory += proc.memory_bytes
    return Usage(count, cpu_s, memory)


def first_child(pid: int) -> int | None:
    """Return a child of a process, if it has one."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            found = file.read().split()
    except OSError:
        return None
    return int(found[0]) if found else None


def disk_bytes(folder: str) -> int:
    """Add up what the files below a folder take."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
    return total


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or None when there is no such process."""
    try:
        return _read(pid).parent
    except (OSError, ValueError, IndexError):
        return None
