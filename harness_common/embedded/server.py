"""What both embedded servers have in common: lock, port, password, log and life."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from harness_common.core.errors import Conflict, Permanent
from harness_common.embedded.files import make_data_dir, tail, write_private
from harness_common.embedded.lock import FolderLock
from harness_common.embedded.process import end_process, free_port, port_holder, port_is_free

_LOG_MAX_BYTES = 10 * 1024 * 1024
_POLL_S = 0.01


class Server(ABC):
    """One server over one data folder: its lock, port, password, log and life.

    `<data_dir>/<name>.json` (0600) remembers port and password, so that the URL stays the same.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    death_signal: ClassVar[int] = signal.SIGTERM
    stop_steps: ClassVar[Sequence[tuple[int, float]]] = ((signal.SIGTERM, 5.0),)
    start_timeout_s: ClassVar[float] = 10.0

    def __init__(self, data_dir: Path, port: int | None = None) -> None:
        self.data_dir = data_dir.absolute()
        self._port = port
        self._state: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: FolderLock | None = None

    @property
    def log_path(self) -> Path:
        """Where the server writes what it has to say."""
        return self.data_dir / "logs" / f"{self.name}.log"

    @property
    def port(self) -> int:
        """The loopback port; known once started."""
        return int(self._state["port"])

    @property
    def pid(self) -> int | None:
        """The server's process, None unless it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect, password included."""

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing when it already runs.

        Raises Conflict when another process holds the folder or the port asked for.
        """
        if self.pid is not None:
            return self
        self._end(())
        self.data_dir = make_data_dir(self.data_dir)
        self.log_path.parent.mkdir(exist_ok=True)
        self._lock = FolderLock(self.data_dir / f"{self.name}.lock", self.title)
        self._lock.acquire()
        try:
            self._load_state()
            self._prepare()
            self._run(self._lock)
            self._after_start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop cleanly, by force after a bounded wait; does nothing when it is stopped."""
        self._end(self.stop_steps)

    def kill(self) -> None:
        """End the server as kill -9 would; `start()` brings it back on the same port."""
        self._end(())

    def restart(self) -> Self:
        """Stop and start on the same port."""
        self.stop()
        return self.start()

    def _end(self, steps: Sequence[tuple[int, float]]) -> None:
        if self._process is not None:
            end_process(self._process, steps)
            self._process = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _load_state(self) -> None:
        path = self.data_dir / f"{self.name}.json"
        if path.exists():
            self._state = json.loads(path.read_bytes())
        self._state.setdefault("password", secrets.token_urlsafe(24))
        self._state["port"] = self._choose_port()
        # From here on the port is fixed for this object: clients hold the URL over a restart.
        self._port = self.port
        self._save_state()

    def _save_state(self) -> None:
        write_private(self.data_dir / f"{self.name}.json", json.dumps(self._state))

    def _choose_port(self) -> int:
        port = self._port or self._state.get("port")
        if port is None:
            return free_port()
        # Whoever listens there is a stranger: holding the lock, we know that ours is gone.
        if port_is_free(port):
            return int(port)
        if self._port is None:
            return free_port()
        raise Conflict(
            f"Port {port} for {self.title} is taken by {port_holder(port)}.",
            code="PORT_TAKEN",
            port=port,
        )

    def _run(self, lock: FolderLock) -> None:
        if self.log_path.exists() and self.log_path.stat().st_size > _LOG_MAX_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        with self.log_path.open("ab") as log:
            self._process = self._launch(log, lock.fd)
        lock.note(self._process.pid)
        deadline = time.monotonic() + self.start_timeout_s
        while not self._is_ready(self._process.pid):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise Permanent(
                    f"{self.title} did not start. The end of {self.log_path}:\n"
                    f"{tail(self.log_path)}",
                    code="EMBEDDED_START_FAILED",
                )
            time.sleep(_POLL_S)

    def _prepare(self) -> None:  # noqa: B027
        """Do what must be there before the server starts; nothing by default."""

    def _after_start(self) -> None:  # noqa: B027
        """Do what needs the server running; nothing by default."""

    @abstractmethod
    def _launch(self, log: IO[bytes], lock_fd: int) -> subprocess.Popen[bytes]:
        """Start the server with its output in `log`; it inherits `lock_fd`."""

    @abstractmethod
    def _is_ready(self, pid: int) -> bool:
        """Tell whether the server of that pid answers."""
