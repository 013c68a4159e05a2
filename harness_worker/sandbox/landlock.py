"""Landlock: which files a process may touch, for itself and all it starts; nothing undoes it.

Detected by system call, never by /sys. https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

from harness_worker.sandbox.kernel import syscall

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}
"""How many of the rights on files each version of the interface knows; from 5 on it is 16."""
_TCP = 3
_SCOPES = 3
"""Abstract Unix sockets and signals stay within the domain (version 6)."""

READ = _EXECUTE | _READ_FILE | _READ_DIR
SIGNALS_SCOPED = 6
"""The version from which a process of the same user can be kept from signalling ours."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("fd", ctypes.c_int32))


def version() -> int:
    """Return the version of the kernel's interface; 0 when there is no Landlock."""
    try:
        return syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def restrict(read: Iterable[str], write: Iterable[str], *, tcp: bool = False) -> int:
    """Leave this process the right to read and execute below `read`, and all rights below `write`.

    Paths that do not exist are passed over. `tcp` leaves it TCP. Returns the version used; raises
    `OSError`. Needs `no_new_privileges` before.
    """
    abi = version()
    if abi == 0:
        raise OSError("the kernel has no Landlock")
    rights = (1 << _FS_BITS.get(abi, 16)) - 1
    ruleset = _Ruleset(rights, 0 if tcp or abi < 4 else _TCP, _SCOPES if abi >= 6 else 0)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    fd = syscall(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for path in read:
            _allow(fd, path, READ & rights)
        for path in write:
            _allow(fd, path, rights & ~_IOCTL_DEV)
        syscall(_RESTRICT, ctypes.c_int(fd), ctypes.c_uint32(0))
    finally:
        os.close(fd)
    return abi


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
        rule = _PathRule(rights, fd)
        syscall(
            _ADD_RULE,
            ctypes.c_int(ruleset),
            ctypes.c_int(_RULE_PATH_BENEATH),
            ctypes.byref(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(fd)
