"""Attempts to read what is not the cage's."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import struct

from harness_worker.sandbox.attempts.common import attempt, env, libc, syscall, victim


@attempt
def read_shadow() -> object:
    with open("/etc/shadow", "rb") as file:
        return file.read(8)


@attempt
def read_host_secret() -> object:
    with open(env("SECRET"), "rb") as file:
        return file.read(8)


@attempt
def secret_in_environment() -> object:
    return [name for name in os.environ if "DATABASE_URL" in name or "APP_SECRET" in name]


@attempt
def environment_of_others() -> object:
    mark = env("MARK").encode()
    own = {os.getpid(), os.getppid()}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in own:
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                if b"HX_VICTIM=" + mark in file.read():
                    return name
    return None


@attempt
def root_of_another_process() -> object:
    # That of the first process of the pid namespace: its root must be no more than ours.
    here, there = os.stat("/"), os.stat(f"/proc/{victim()}/root/")
    os.listdir(f"/proc/{victim()}/root")
    return (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino) or "the same root"


@attempt
def see_other_processes() -> object:
    count = sum(name.isdigit() for name in os.listdir("/proc"))
    return count if count > 6 else None


@attempt
def see_the_victim() -> object:
    with open(f"/proc/{victim()}/cmdline", "rb") as file:
        return b"HX_VICTIM" in file.read() or None


@attempt
def memory_of_another() -> object:
    with open(f"/proc/{victim()}/mem", "rb") as file:
        return file.fileno()


@attempt
def files_of_another() -> object:
    return os.listdir(f"/proc/{victim()}/fd")


@attempt
def symlink_to_secret() -> object:
    link = f"link-{os.getpid()}"
    os.symlink(env("SECRET"), link)
    with open(link, "rb") as file:
        return file.read(8)


@attempt
def hardlink_to_secret() -> object:
    os.link(env("SECRET"), f"hard-{os.getpid()}")
    return "linked"


@attempt
def disk_device() -> object:
    name = f"disk-{os.getpid()}"
    os.mknod(name, 0o60600, os.makedev(7, 0))
    with open(name, "rb") as file:
        return file.read(1) or "opened"


@attempt
def character_device() -> object:
    name = f"mem-{os.getpid()}"
    os.mknod(name, 0o20600, os.makedev(1, 1))
    return "made"


@attempt
def raw_disk() -> object:
    for path in ("/dev/sda", "/dev/vda", "/dev/mem", "/dev/kmem", "/dev/root", "/dev/loop0"):
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(1) or path
    return None


@attempt
def kernel_log() -> object:
    with contextlib.suppress(OSError):
        os.close(os.open("/dev/kmsg", os.O_RDONLY))
        return "/dev/kmsg"
    return libc.klogctl(10, None, 0) if libc.klogctl(10, None, 0) >= 0 else None


@attempt
def open_by_handle() -> object:
    handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0), 136)
    mount_id = ctypes.c_int()
    args = (b"/etc/shadow", handle, ctypes.byref(mount_id), 0)
    return syscall(303, ctypes.c_int(-100), *args) == 0 or None


@attempt
def inherited_files() -> object:
    found = []
    for fd in range(3, 512):
        with contextlib.suppress(OSError):
            info = os.fstat(fd)
            if not stat.S_ISFIFO(info.st_mode) and info.st_nlink:  # a memfd has no link
                found.append((fd, oct(info.st_mode)))
    return found
