"""What runs in a cage: a runner that takes one job, forks the program, and reports how it ended.

The runner trusts the worker, and nobody trusts the runner: the program has the same user and could
do to it what it likes, so what comes out is checked outside. The standard library alone is used,
but for `tool`, which imports what the tool needs.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import stat
import sys
import time
import traceback
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import Any, NoReturn

from harness_worker.sandbox import blame, frames, kernel, landlock, sigsys

CTRL = 3
_MAX_FILES = 200
_MAX_LEFT_OUT = 50


def main(setup_text: str) -> None:
    """Get ready, take a job, run it, report it, end."""
    setup = json.loads(setup_text)
    kernel.set_dumpable(False)
    if setup["tier"] == "A":
        _restrict_more(setup)
    for name in setup["preload"]:
        importlib.import_module(name)
    if setup["proxy"]:
        from harness_worker.sandbox import relay  # noqa: PLC0415 - threads and sockets, for few

        relay.start()
    _send({"ready": os.getpid()})
    head, body = frames.read(_take, 1 << 31)
    work = os.getcwd()
    given = _write_files(work, head["files"], body)
    started = time.monotonic()
    report_r, report_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(report_r)
        _be_program(setup, head, report_w)
    os.close(report_w)
    _, status = os.waitpid(pid, 0)
    if setup["tier"] == "A":
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # in a pid namespace of our own: leftovers
    told = _reports(report_r)
    code = os.waitstatus_to_exitcode(status)
    ended = blame.judge(head["kind"], code, told)
    left_out = _send_files(work, given, head["limits"]["artifact_bytes"])
    ended |= {"ended": True, "left_out": left_out, "took_s": time.monotonic() - started}
    _send(ended)
    os._exit(0)


def _restrict_more(setup: dict[str, Any]) -> None:
    """Add Landlock to the namespaces, where the kernel has it."""
    if landlock.version():
        write = ("/work", "/tmp", "/dev", "/proc")  # noqa: S108 - the cage's own
        with contextlib.suppress(OSError):
            landlock.restrict(("/",), write, tcp=setup["proxy"])


def _take(count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = os.read(CTRL, min(count - len(data), 1 << 20))
        if not chunk:
            os._exit(0)  # the worker is gone, or has no use for this cage
        data += chunk
    return bytes(data)


def _send(head: frames.Head, body: bytes = b"") -> None:
    data = memoryview(frames.pack(head, body))
    while data:
        data = data[os.write(CTRL, data) :]


# --- files in, files out ---


def _write_files(
    work: str, files: list[tuple[str, int]], body: bytes
) -> dict[str, tuple[int, int]]:
    """Write the job's files; returns what each looked like, to tell later which were changed."""
    given, at = {}, 0
    for path, size in files:
        full = os.path.join(work, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as file:
            file.write(body[at : at + size])
        at += size
        info = os.stat(full)
        given[path] = (info.st_mtime_ns, info.st_size)
    return given


def _send_files(work: str, given: dict[str, tuple[int, int]], room: int) -> list[str]:
    """Send the regular files that are new or changed; returns the names of what stays behind."""
    left_out: list[str] = []
    sent = 0
    for path, full in _walk(work):
        try:
            fd = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            left_out.append(path)
            continue
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            if given.get(path) == (info.st_mtime_ns, info.st_size):
                continue
            if not stat.S_ISREG(info.st_mode) or info.st_size > room or sent >= _MAX_FILES:
                left_out.append(path)
                continue
            data = file.read(info.st_size)
        room -= len(data)
        sent += 1
        _send({"file": path}, data)
    return left_out[:_MAX_LEFT_OUT]


def _walk(work: str) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(work):
        folders[:] = sorted(d for d in folders if not d.startswith(".") and d != "__pycache__")
        for name in sorted(names):
            if not name.startswith("."):
                full = os.path.join(folder, name)
                yield os.path.relpath(full, work), full


def _reports(fd: int) -> list[dict[str, Any]]:
    """Read what the program's process had to say; a child left behind may hold the pipe open."""
    os.set_blocking(fd, False)
    data = b""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(fd, 65_536):
            data += chunk
            if len(data) > 1 << 20:
                break
    told = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            item = json.loads(line)
            if isinstance(item, dict):
                told.append(item)
    return told


# --- the program ---


def _be_program(setup: dict[str, Any], job: frames.Head, report: int) -> NoReturn:
    """Run what was asked for; never returns."""
    code = 1
    try:
        _limit(job["limits"], grouped=setup["grouped"])
        kernel.set_dumpable(True)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # rather this than the runner
        os.environ.update(job["env"])
        _stdin(job["stdin"])
        if job["kind"] == "shell":
            os.close(CTRL)
            shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
            os.execv(shell, [shell, "-c", job["source"]])
        sigsys.report_to(report)
        if job["kind"] == "tool":
            from harness_worker.sandbox.caged_tool import run_tool  # noqa: PLC0415

            receive = partial(frames.read, _take, 1 << 31)
            code = run_tool(job, _send, receive, partial(_tell, report))
        else:
            os.close(CTRL)
            code = _run_python(job["source"], report)
    except BaseException:  # noqa: BLE001 - a fork must not go on as a second runner
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _limit(limits: dict[str, float], *, grouped: bool) -> None:
    cpu_s = max(1, round(limits["cpu_s"] + 0.499))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    disk = int(limits["disk_bytes"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))
    # Somewhat above, so that the jailer sees who passes it; it counts threads, and where the user
    # is not the cage's own, all that the user runs.
    processes = int(limits["processes"]) + limits.get("users_processes", 0) + 8
    resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), int(processes)))
    if not grouped:
        memory = int(limits["memory_bytes"])
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _stdin(text: str) -> None:
    memory = os.memfd_create("stdin", 0)
    os.write(memory, text.encode("utf-8", "surrogateescape"))
    os.lseek(memory, 0, os.SEEK_SET)
    os.dup2(memory, 0)
    os.close(memory)


def _run_python(source: str, report: int) -> int:
    """Run code as `__main__`; returns its exit code."""
    sys.argv = ["python_run"]
    sys.path.insert(0, os.getcwd())
    main_module = type(sys)("__main__")
    sys.modules["__main__"] = main_module
    try:
        code = compile(source, "<python_run>", "exec", dont_inherit=True)
        exec(code, main_module.__dict__)  # noqa: S102 - what the cage is for
    except SystemExit as leave:
        return _exit_code(leave)
    except BaseException as error:  # noqa: BLE001 - told to the model
        shown = error.with_traceback(_beyond_this_file(error))
        traceback.print_exception(shown)
        _tell(report, error)
        return 1
    return 0


def _tell(report: int, error: BaseException) -> None:
    os.write(report, json.dumps(blame.describe(error)).encode() + b"\n")


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return (leave.code or 0) & 0xFF
    sys.stderr.write(f"{leave.code}\n")
    return 1


def _beyond_this_file(error: BaseException) -> TracebackType | None:
    at = error.__traceback__
    while at is not None and at.tb_frame.f_code.co_filename == __file__:
        at = at.tb_next
    return at
