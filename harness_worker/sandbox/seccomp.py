"""The system call filters of the cages, as BPF programs for x86-64.

What a tool has no business with ends it (SIGSYS, so that the call can be named); what libraries
only try is answered with an error; whatever is newer than the table does not exist.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Final

from harness_worker.sandbox.syscalls import ENDING

_AUDIT_ARCH_X86_64 = 0xC000003E
_X32 = 0x40000000
_NEWEST = 456
"""The last number that has been looked at; what came to the kernel later is answered ENOSYS."""

_LOAD, _EQ, _GT, _SET, _RET = 0x20, 0x15, 0x25, 0x45, 0x06
_AND = 0x54
_ALLOW, _KILL, _TRAP, _ERRNO = 0x7FFF0000, 0x80000000, 0x00030000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_NR, _ARCH, _ARGS = 0, 4, 16

_REFUSED: Final = {"personality": 135, "adjtimex": 159}
_MKNOD: Final = {133: 1, 259: 2}
"""`mknod` and `mknodat`, and which argument is the mode: regular files and pipes, no devices."""
_KIND, _PLAIN_KINDS = 0o170000, (0, 0o100000, 0o010000)
_ABSENT: Final = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435,
}  # fmt: skip
_CLONE_NEW: Final = 0x7E020000
"""Every flag that makes a namespace."""
_TERMINAL_INPUT: Final = (0x5412, 0x541C)

_OTHERS: Final = {
    # Other processes of the same user, shared memory of the machine, and what Landlock does not
    # govern: owner, mode, times and attributes of files outside the work folder.
    "shmget": 29, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "semget": 64, "msgget": 68,
    "chmod": 90, "chown": 92, "lchown": 94, "setpgid": 109, "setsid": 112, "utime": 132,
    "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "setxattr": 188,
    "lsetxattr": 189, "removexattr": 197, "lremovexattr": 198, "sched_setaffinity": 203,
    "utimes": 235, "mq_open": 240, "ioprio_set": 251, "fchownat": 260, "futimesat": 261,
    "fchmodat": 268, "accept4": 288, "sched_setattr": 314, "fchmodat2": 452,
}  # fmt: skip
"""Refused where there are no namespaces (tier B)."""

_CLONE, _IOCTL, _SOCKET, _SOCKETPAIR, _UTIMENSAT, _PRLIMIT = 56, 16, 41, 53, 280, 302
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM = 1, 2, 10, 1


@dataclass(frozen=True, slots=True)
class _Op:
    code: int
    value: int
    yes: int = 0
    no: int = 0

    def pack(self) -> bytes:
        return struct.pack("<HBBI", self.code, self.yes, self.no, self.value & 0xFFFFFFFF)


def _ret(action: int) -> _Op:
    return _Op(_RET, action)


def _refuse(code: int = _EPERM) -> _Op:
    return _ret(_ERRNO | code)


def _arg(index: int, *, high: bool = False) -> _Op:
    return _Op(_LOAD, _ARGS + 8 * index + (4 if high else 0))


def _on(number: int, *body: _Op) -> list[_Op]:
    """Run `body` for one system call; it ends in an answer."""
    return [_Op(_EQ, number, 0, len(body)), *body]


def _only(*allowed: int, mask: int | None = None, arg: int = 0) -> list[_Op]:
    """Allow the call when an argument is one of these, else refuse it."""
    masked = [] if mask is None else [_Op(_AND, mask)]
    tests = [_Op(_EQ, value, len(allowed) - i, 0) for i, value in enumerate(allowed)]
    return [_arg(arg), *masked, *tests, _refuse(), _ret(_ALLOW)]


def _common() -> list[_Op]:
    ops = [
        _Op(_LOAD, _ARCH), _Op(_EQ, _AUDIT_ARCH_X86_64, 1, 0), _ret(_KILL),
        _Op(_LOAD, _NR), _Op(_GT, _X32 - 1, 0, 1), _ret(_KILL),
        _Op(_GT, _NEWEST, 0, 1), _refuse(_ENOSYS),
    ]  # fmt: skip
    for number in ENDING.values():
        ops += _on(number, _ret(_TRAP))
    for number in _REFUSED.values():
        ops += _on(number, _refuse())
    for number, mode in _MKNOD.items():
        ops += _on(number, *_only(*_PLAIN_KINDS, mask=_KIND, arg=mode))
    for number in _ABSENT.values():
        ops += _on(number, _refuse(_ENOSYS))
    ops += _on(_CLONE, _arg(0), _Op(_SET, _CLONE_NEW, 0, 1), _refuse(), _ret(_ALLOW))
    first, second = _TERMINAL_INPUT
    ops += _on(
        _IOCTL, _arg(1), _Op(_EQ, first, 1, 0), _Op(_EQ, second, 0, 1), _refuse(), _ret(_ALLOW)
    )
    return ops


@cache
def tier_a(*, inet: bool) -> bytes:
    """Build the filter of a cage with namespaces; `inet` where its own empty network has a relay to
    the egress proxy.
    """
    families = (_AF_UNIX, _AF_INET, _AF_INET6) if inet else (_AF_UNIX,)
    ops = [*_common(), *_on(_SOCKET, *_only(*families)), _ret(_ALLOW)]
    return b"".join(op.pack() for op in ops)


@cache
def tier_b() -> bytes:
    """Build the filter of a cage without namespaces: no sockets, nothing that reaches others.

    A pair of streams is left: a pair of datagram sockets could still send to any name.
    """
    ops = _common()
    for number in _OTHERS.values():
        ops += _on(number, _refuse())
    ops += _on(_SOCKET, _refuse())
    ops += _on(_SOCKETPAIR, *_only(_SOCK_STREAM, mask=0xF, arg=1))
    null = [
        _arg(1), _Op(_EQ, 0, 0, 2), _arg(1, high=True), _Op(_EQ, 0, 1, 0), _refuse(), _ret(_ALLOW),
    ]  # fmt: skip
    ops += _on(_UTIMENSAT, *null)
    ops += _on(_PRLIMIT, _arg(0), _Op(_EQ, 0, 1, 0), _refuse(), _ret(_ALLOW))
    ops.append(_ret(_ALLOW))
    return b"".join(op.pack() for op in ops)
