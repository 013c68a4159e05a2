"""Children that die with us, and who listens on which port.

The embedded servers and the supervisor of `harness dev` start everything through `spawn`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, cast

import psutil

from harness_common.core.errors import Permanent

LOOPBACK = "127.0.0.1"
_PORTS = range(20_000, 30_000)
"""Below those the kernel lends to outgoing connections, so that a remembered one stays free."""

_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1
_SPAWNER = ThreadPoolExecutor(1, thread_name_prefix="spawn")
"""PDEATHSIG fires when the *thread* that forked ends: one that never does forks all children."""


class Account(NamedTuple):
    """The user and group a child runs as."""

    uid: int
    gid: int


def _die_with(parent: int, death_signal: int) -> None:
    """Run between fork and exec, after setuid (which would clear the setting)."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl: the signal will never come
        os._exit(1)


def dies_with_us(death_signal: int) -> Callable[[], None]:
    """Return what a child does before it becomes its program (`preexec_fn`), so that it gets
    `death_signal` when the thread that started it ends, or the whole process.
    """
    return partial(_die_with, os.getpid(), death_signal)


def spawn(
    argv: Sequence[str | Path],
    *,
    death_signal: int = signal.SIGTERM,
    env: Mapping[str, str] | None = None,
    account: Account | None = None,
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child in its own process group that gets `death_signal` when this process dies.

    Its stderr goes where its stdout goes. Outside Linux it outlives a kill -9 of this process.
    """
    start = partial(
        subprocess.Popen,
        [str(arg) for arg in argv],
        env=env,
        stdin=stdin,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout is not None else None,
        cwd=cwd,
        pass_fds=pass_fds,
        process_group=0,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        preexec_fn=dies_with_us(death_signal),
    )
    return cast("subprocess.Popen[bytes]", _SPAWNER.submit(start).result())


def end_process(process: subprocess.Popen[bytes], steps: Sequence[tuple[int, float]]) -> int:
    """Send each (signal, seconds to wait) in turn until the child has ended; then kill -9."""
    for signum, wait_s in steps:
        if process.poll() is not None:
            return process.returncode
        process.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(wait_s)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def describe(pid: int) -> str:
    """Name a process for people."""
    try:
        return f"process {pid} ({' '.join(psutil.Process(pid).cmdline())[:120]})"
    except psutil.Error:
        return f"process {pid}"


def port_is_free(port: int, host: str = LOOPBACK) -> bool:
    """Tell whether a server could listen there now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def port_holder(port: int) -> str:
    """Name the process that listens on `port`, as far as we may see it."""
    with contextlib.suppress(psutil.Error):
        for conn in psutil.net_connections("tcp"):
            if (
                conn.status == psutil.CONN_LISTEN
                and getattr(conn.laddr, "port", 0) == port
                and conn.pid
            ):
                return describe(conn.pid)
    return "another process"


def free_port() -> int:
    """Choose a loopback port that nobody listens on."""
    for port in random.sample(_PORTS, 200):
        if port_is_free(port):
            return port
    raise Permanent("No free port between 20000 and 29999 on 127.0.0.1.", code="NO_FREE_PORT")
