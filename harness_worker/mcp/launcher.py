"""Runs an MCP server that is a command, and leaves nothing of it behind. A program of its own.

    python -I -S launcher.py MAX_LINE_BYTES -- PROGRAM ARGUMENT...

The worker's client starts this in a session of its own; standard library only, for a quick start.
It passes the server's output on, ends when a line is longer than allowed (the client would keep
all of it in memory), and kills the server with all its descendants when the server closes its
output or ends, when nobody reads that any more, when it is told to stop, and when the worker dies,
whatever signal killed that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 65_536
_ROUNDS = 20
"""How often what is left is looked for: a descendant may be making another."""
TOO_LONG = 75
CANNOT_START = 127


_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def _prctl(option: int, value: int) -> None:
    if _LIBC is not None:
        _LIBC.prctl(option, value, 0, 0, 0)


def _descendants(pid: int) -> list[int]:
    """Return all descendants of a process; those that left its session as well."""
    found: list[int] = []
    queue = [pid]
    while queue:
        try:
            with open(f"/proc/{queue[-1]}/task/{queue.pop()}/children") as file:
                children = [int(text) for text in file.read().split()]
        except OSError:
            continue
        found += children
        queue += children
    return found


def _kill_all() -> None:
    for _ in range(_ROUNDS):
        left = _descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not left:
            return
        select.select([], [], [], 0.005)


def _pass_on(source: int, limit: int) -> int:
    """Copy lines to our output until the source ends; returns an exit code."""
    length = 0
    while data := os.read(source, _CHUNK):
        first, *lines = data.split(b"\n")
        length += len(first)
        if length > limit:
            sys.stderr.write(f"a message of the server is longer than {limit} bytes\n")
            return TOO_LONG
        if lines:
            length = len(lines[-1])  # one chunk alone is shorter than any limit
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]
    return 0


def main(argv: list[str]) -> int:
    """Run the server to its end; returns its exit code."""
    limit, command = int(argv[0]), argv[2:]
    parent = os.getppid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent or parent == 1:
        return 1

    def stop(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(name, stop)
    try:
        server = subprocess.Popen(
            command,
            stdin=0,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509 - one thread
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]!r}: {error.strerror}\n")
        return CANNOT_START
    try:
        assert server.stdout is not None
        code = _pass_on(server.stdout.fileno(), limit)
        return code or server.wait(1.0)
    except (BrokenPipeError, subprocess.TimeoutExpired):
        return 1
    finally:
        for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, signal.SIG_IGN)
        _kill_all()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
