"""Attempts to gain power: namespaces, mounts, users, the kernel's interfaces."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import struct

from harness_worker.sandbox.attempts.common import attempt, libc, syscall

_NEWUSER, _NEWNS, _NEWNET = 0x10000000, 0x00020000, 0x40000000


@attempt
def new_user_namespace() -> object:
    return syscall(272, ctypes.c_ulong(_NEWUSER)) == 0


@attempt
def clone_user_namespace() -> object:
    pid = syscall(56, ctypes.c_ulong(_NEWUSER | signal.SIGCHLD), 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


@attempt
def clone3_user_namespace() -> object:
    args = (ctypes.c_uint64 * 11)(_NEWUSER, 0, 0, 0, signal.SIGCHLD)
    pid = syscall(435, ctypes.byref(args), ctypes.c_size_t(88))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned"


@attempt
def new_mount_namespace() -> object:
    return syscall(272, ctypes.c_ulong(_NEWNS)) == 0


@attempt
def new_network_namespace() -> object:
    return syscall(272, ctypes.c_ulong(_NEWNET)) == 0


@attempt
def enter_namespace() -> object:
    return syscall(308, os.open("/proc/1/ns/net", os.O_RDONLY), 0) == 0


@attempt
def mount_tmpfs() -> object:
    return syscall(165, b"none", b"/tmp", b"tmpfs", ctypes.c_ulong(0), None) == 0


@attempt
def remount_writable() -> object:
    return syscall(165, b"none", b"/usr", None, ctypes.c_ulong(0x1020), None) == 0


@attempt
def new_mount_interface() -> object:
    return syscall(430, b"tmpfs", 0)


@attempt
def copy_a_tree() -> object:
    return syscall(428, ctypes.c_int(-100), b"/", 1)


@attempt
def change_root() -> object:
    os.chroot(".")
    return "root changed"


@attempt
def become_root() -> object:
    os.setuid(0)
    return "uid 0" if os.getuid() == 0 else None


@attempt
def capabilities() -> object:
    header = struct.pack("<Ii", 0x20080522, 0)
    data = ctypes.create_string_buffer(24)
    syscall(125, header, data)
    effective, permitted = struct.unpack_from("<II", data.raw)
    return hex(effective | permitted) if effective | permitted else None


@attempt
def privileges_can_be_gained() -> object:
    return "no_new_privs is off" if libc.prctl(39, 0, 0, 0, 0) == 0 else None


@attempt
def setuid_program() -> object:
    name = f"su-{os.getpid()}"
    with open(name, "w") as file:
        file.write("#!")
    os.chmod(name, 0o4755)
    is_powerless = os.statvfs(name).f_flag & os.ST_NOSUID or libc.prctl(39, 0, 0, 0, 0)
    return None if is_powerless else "a setuid file that works"


@attempt
def bpf() -> object:
    attr = ctypes.create_string_buffer(struct.pack("<IIII", 2, 4, 4, 1), 72)
    return syscall(321, 0, attr, 72)


@attempt
def io_uring() -> object:
    return syscall(425, 8, ctypes.create_string_buffer(120))


@attempt
def keyring() -> object:
    return syscall(250, 0, -3, 0)


@attempt
def userfault() -> object:
    return syscall(323, 1)


@attempt
def performance_counters() -> object:
    attr = ctypes.create_string_buffer(struct.pack("<IIQ", 1, 112, 1), 112)
    return syscall(298, attr, 0, -1, -1, ctypes.c_ulong(0))


@attempt
def kernel_module() -> object:
    syscall(175, b"", 0, b"")
    return "init_module"


@attempt
def hostname() -> object:
    before = socket.gethostname()
    syscall(170, before.encode(), len(before))
    return "hostname set"


@attempt
def realtime() -> object:
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
    return "realtime priority"


@attempt
def raise_limits() -> object:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard + 1))
    return "limit raised"


@attempt
def other_call_numbers() -> object:
    # The x32 numbers of the same calls, which a filter may have forgotten.
    return syscall(0x40000000 + 39)
