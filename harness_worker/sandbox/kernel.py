"""Calls to the kernel that Python has no name for. x86-64 Linux; used between fork and exec too."""

from __future__ import annotations

import ctypes
import os
import sys

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
CLONE_NEWNS = 0x00020000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP = 1, 4, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SECCOMP_MODE_FILTER = 2

SUPPORTED = sys.platform == "linux" and os.uname().machine == "x86_64"
"""System call numbers differ between machines; those here are x86-64's."""

_libc = ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *args: object) -> int:
    """Make a system call; raises `OSError`."""
    result: int = _libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _prctl(option: int, *args: object) -> None:
    filled = [*args, *([0] * (4 - len(args)))]
    if _libc.prctl(option, *filled) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(parent: int) -> None:
    """Be killed when `parent`, which forked this process, ends. After setuid, which clears it."""
    _prctl(_PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:
        os._exit(1)


def be_subreaper() -> None:
    """Become the parent of every orphan below this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_dumpable(on: bool) -> None:
    """Let processes of the same user look into this one, or not."""
    _prctl(_PR_SET_DUMPABLE, int(on))


def no_new_privileges() -> None:
    """Make setuid programs and the like powerless for this process and all it starts."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def load_seccomp(program: bytes) -> None:
    """Put a filter on this process; needs `no_new_privileges` before."""
    prog = _SockFprog(len(program) // 8, program)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(prog))


def unshare(flags: int) -> None:
    """Leave namespaces that are shared with others."""
    if _libc.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount something; raises `OSError`."""
    args = [part.encode() if part else None for part in (source, target, kind)]
    if _libc.mount(*args, ctypes.c_ulong(flags), data.encode() if data else None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{os.strerror(code)}: mount {target}")


def unmount(target: str) -> None:
    """Take a mount away, even a busy one."""
    if _libc.umount2(target.encode(), 2) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
