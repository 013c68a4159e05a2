"""Attempts to write what is not the cage's."""

from __future__ import annotations

import contextlib
import os

from harness_worker.sandbox.attempts.common import attempt, env


@attempt
def write_outside() -> object:
    done = []
    folders = ("/", "/usr", "/etc", "/root", "/opt", "/var/tmp", "/dev", "/run", "/lib", "/bin")
    for folder in folders:
        path = os.path.join(folder, f"harness-escape-{os.getpid()}")
        with contextlib.suppress(OSError):
            with open(path, "w") as file:
                file.write("1")
            done.append(path)
            os.unlink(path)
    return done


@attempt
def write_owned() -> object:
    with open(env("OWNED"), "r+") as file:
        file.write("x")
    return "written"


@attempt
def truncate_owned() -> object:
    os.truncate(env("OWNED"), 0)
    return "truncated"


@attempt
def chmod_owned() -> object:
    os.chmod(env("OWNED"), 0o777)
    return "mode changed"


@attempt
def touch_owned() -> object:
    os.utime(env("OWNED"), (1, 1))
    return "time changed"


@attempt
def label_owned() -> object:
    os.setxattr(env("OWNED"), "user.harness", b"1")
    return "attribute set"


@attempt
def unlink_owned() -> object:
    os.unlink(env("OWNED"))
    return "removed"


@attempt
def kernel_setting() -> object:
    os.close(os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY))
    return "core_pattern can be written"


@attempt
def sysrq() -> object:
    os.close(os.open("/proc/sysrq-trigger", os.O_WRONLY))
    return "sysrq can be triggered"


@attempt
def move_cgroup() -> object:
    for path in ("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/tasks"):
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            return path
    return None
