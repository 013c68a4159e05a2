"""What the attempts share: their list, the victims that the environment names, raw system calls."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

Attempt = Callable[[], object]
ATTEMPTS: dict[str, Attempt] = {}

libc = ctypes.CDLL(None, use_errno=True)


def attempt(fn: Attempt) -> Attempt:
    """Put a function on the list."""
    ATTEMPTS[fn.__name__] = fn
    return fn


def syscall(number: int, *args: object) -> int:
    """Make a system call; raises `OSError`."""
    result: int = libc.syscall(ctypes.c_long(number), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def env(name: str) -> str:
    """Return what the caller says of a victim."""
    return os.environ[f"HX_{name}"]


def victim() -> int:
    """Return the number of a process on the host."""
    return int(env("PID"))


def port() -> int:
    """Return a port on the host's loopback."""
    return int(env("PORT"))
