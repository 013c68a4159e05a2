"""Who holds a data folder: one flock per server or supervisor, and a note of the holder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from harness_common.core.errors import Conflict
from harness_common.embedded.process import describe

_POLL_S = 0.01


class FolderLock:
    """An flock on a file, handed on to children: held while the owner or any of them lives.

    `leftover` says what a new owner does about children that outlive a dead one: after so many
    seconds of waiting it sends them that signal.
    """

    def __init__(
        self,
        path: Path,
        what: str,
        leftover: Sequence[tuple[float, int]] = (
            (0, signal.SIGINT),
            (5, signal.SIGQUIT),
            (10, signal.SIGKILL),
        ),
    ) -> None:
        self._path = path
        self._what = what
        self._leftover = leftover
        self._fd: int | None = None

    @property
    def fd(self) -> int:
        """The descriptor to pass on to children."""
        if self._fd is None:
            raise RuntimeError(f"{self._path} is not held")
        return self._fd

    def acquire(self) -> None:
        """Take the lock, or raise Conflict that names the holder.

        Waits for what a dead holder left behind, 5 s longer than the last signal of `leftover`.
        """
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self.note()

    def _take(self, fd: int) -> None:
        started = time.monotonic()
        signals = list(self._leftover)
        longest_s = signals[-1][0] + 5
        while not _try_lock(fd):
            waited_s = time.monotonic() - started
            holder, children = self._read_note()
            # Our own pid with no child: an end of ours that is just being cleared away.
            ending = holder is not None and holder.pid == os.getpid() and not children
            if (holder and not ending) or waited_s > longest_s:
                self._refuse(holder or next(iter(children), None))
            if signals and waited_s >= signals[0][0]:
                _, signum = signals.pop(0)
                for child in children:
                    with contextlib.suppress(psutil.Error):
                        child.send_signal(signum)
            time.sleep(_POLL_S)

    def _refuse(self, by: psutil.Process | None) -> None:
        who = describe(by.pid) if by else "an unknown process"
        raise Conflict(
            f"{self._what} of {self._path.parent} is already running: it is held by {who}. "
            "Stop that first, or use another data folder.",
            code="ALREADY_RUNNING",
            pid=by.pid if by else None,
        )

    def _read_note(self) -> tuple[psutil.Process | None, list[psutil.Process]]:
        try:
            noted = json.loads(self._path.read_bytes())
        except ValueError:  # being written just now
            return None, []
        children = [_alive(identity) for identity in noted["children"]]
        return _alive(noted["holder"]), [child for child in children if child]

    def note(self, *children: int) -> None:
        """Write down who holds the lock, for whoever is refused or has to clear up."""
        noted = {
            "holder": _identity(os.getpid()),
            "children": [_identity(child) for child in children],
        }
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, json.dumps(noted).encode(), 0)

    def release(self) -> None:
        """Let go; the lock is free once every child that inherited it has ended."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _identity(pid: int) -> list[float]:
    with contextlib.suppress(psutil.Error):
        return [pid, psutil.Process(pid).create_time()]
    return [pid, 0.0]


def _alive(identity: Sequence[float]) -> psutil.Process | None:
    """Find the process by pid and birth, since pids come round again."""
    try:
        process = psutil.Process(int(identity[0]))
        if abs(process.create_time() - identity[1]) > 1 or process.status() == psutil.STATUS_ZOMBIE:
            return None
    except psutil.Error:
        return None
    return process
