"""Attempts upon other processes and the machine's shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal

from harness_worker.sandbox.attempts.common import attempt, libc, syscall, victim
from harness_worker.sandbox.attempts.reading import see_the_victim


@attempt
def ptrace_victim() -> object:
    return syscall(101, 16, victim(), 0, 0) == 0


@attempt
def read_memory_of_victim() -> object:
    buffer = ctypes.create_string_buffer(8)
    local = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    with open(f"/proc/{victim()}/maps") as file:
        start = int(file.readline().split("-")[0], 16)
    remote = (ctypes.c_size_t * 2)(start, 8)
    return syscall(310, victim(), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)


@attempt
def signal_victim() -> object:
    os.kill(victim(), signal.SIGCONT)
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{victim()}/cmdline", "rb") as file:
        return b"HX_VICTIM" in file.read() or None  # in a pid namespace it is somebody else
    return "signalled"


@attempt
def signal_by_pidfd() -> object:
    fd = os.pidfd_open(victim())
    signal.pidfd_send_signal(fd, signal.SIGCONT)
    return signal_victim()


@attempt
def limit_victim() -> object:
    before = resource.prlimit(victim(), resource.RLIMIT_CORE)
    resource.prlimit(victim(), resource.RLIMIT_CORE, before)
    return see_the_victim() if os.path.exists("/proc/self") else "limits set"


@attempt
def priority_of_victim() -> object:
    os.setpriority(os.PRIO_PROCESS, victim(), 1)
    return see_the_victim() if os.path.exists("/proc/self") else "priority set"


@attempt
def take_file_of_victim() -> object:
    return syscall(438, os.pidfd_open(victim()), 0, 0)


@attempt
def leave_the_group() -> object:
    # In a pid namespace a new session is of no use; without one nothing may leave the group.
    os.setsid() if os.getpid() != os.getsid(0) else None
    return None if os.path.exists("/proc/1/stat") and _is_alone() else "a session of its own"


def _is_alone() -> bool:
    return sum(name.isdigit() for name in os.listdir("/proc")) <= 6


@attempt
def shared_memory_of_machine() -> object:
    made = libc.shmget(0x48415253, 4096, 0o1666)
    if made < 0:
        return None
    libc.shmctl(made, 0, None)
    return None if _is_private_ipc() else "System V shared memory"


def _is_private_ipc() -> bool:
    with contextlib.suppress(OSError, KeyError):
        return os.readlink("/proc/self/ns/ipc") != os.environ["HX_IPC"]
    return False


@attempt
def terminal_input() -> object:
    fd = os.open("/dev/tty", os.O_RDWR)
    fcntl.ioctl(fd, 0x5412, b"x")
    return "typed"


@attempt
def terminal_ioctl() -> object:
    one, other = os.openpty() if hasattr(os, "openpty") else (0, 0)
    fcntl.ioctl(other, 0x5412, b"x")
    return one
