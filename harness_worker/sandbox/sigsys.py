"""Names the system call that the filter ended a program for.

The filter sends SIGSYS with the number of the call; Python's own handlers never see that number, so
this one is a C callback. A program that is started by exec has no handler and is simply ended.
"""

from __future__ import annotations

import ctypes
import os
import signal

from harness_worker.sandbox.syscalls import name_of

_SA_SIGINFO, _SA_NODEFER = 4, 0x40000000
_SYSCALL_AT = 24
"""Where `siginfo_t` has the number, on x86-64."""


class _SigAction(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_Handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_kept: list[object] = []


def report_to(fd: int) -> None:
    """Write `{"syscall": name}` to `fd` and end when the filter forbids a call."""

    def end(_: int, info: int, __: int) -> None:
        number = ctypes.c_int.from_address(info + _SYSCALL_AT).value
        os.write(fd, b'{"syscall": "%s"}\n' % name_of(number).encode())
        os._exit(127)

    handler = _Handler(end)
    action = _SigAction(ctypes.cast(handler, ctypes.c_void_p), flags=_SA_SIGINFO | _SA_NODEFER)
    _kept.append(handler)
    ctypes.CDLL(None).sigaction(int(signal.SIGSYS), ctypes.byref(action), None)
