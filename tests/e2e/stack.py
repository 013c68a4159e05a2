"""A whole platform of real processes: Postgres, Valkey, APIs, schedulers, workers.

Everything listens on loopback, lives in one temporary folder and ends with the test.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
from psycopg.rows import dict_row

from harness_common.embedded import EmbeddedPostgres, EmbeddedValkey
from harness_common.embedded.process import free_port, spawn

_EVER = datetime.min.replace(tzinfo=UTC)


class Stack:
    """Start with `with`; `kill(name)` is kill -9, `start(name)` starts it (again)."""

    start_s = 180.0
    """How long processes may take to start, on a machine that does much else."""

    def __init__(
        self,
        *,
        apis: int = 1,
        schedulers: int = 1,
        workers: int = 1,
        processes: int = 2,
        **env: str,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="harness-e2e-", dir="/var/tmp"))
        self.folder.chmod(0o711)
        self.postgres = EmbeddedPostgres(self.folder)
        self.valkey = EmbeddedValkey(self.folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._extra = env
        self._argv: dict[str, list[str]] = {}
        self.api_ports: list[int] = []
        self.effects = self.folder / "effects.txt"
        """Where tools under test leave their effects: outside the database."""
        self._counts = (apis, schedulers, workers, processes)

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def _open(self) -> None:
        apis, schedulers, workers, processes = self._counts
        self.postgres.start()
        self.valkey.start()
        self.env = {
            **os.environ,
            "HARNESS_DATABASE_URL": self.postgres.url,
            "HARNESS_REDIS_URL": self.valkey.url,
            "HARNESS_DATA_DIR": str(self.folder),
            "HARNESS_WORKER__LEASE_S": "3",
            "HARNESS_WORKER__RENEW_S": "1",
            "HARNESS_WORKER__GRACE_S": "3",
            "HARNESS_LOG__FORMAT": "json",
            **self._extra,
        }
        for module in ("harness_common.store.migrate", "harness_common.store.bootstrap"):
            subprocess.run(
                [sys.executable, "-m", module], env=self.env, check=True, stdout=subprocess.DEVNULL
            )
        for n in range(apis):
            port = free_port()
            self.api_ports.append(port)
            self._argv[f"api-{n}"] = [
                "env",
                f"HARNESS_API__PORT={port}",
                sys.executable,
                "-m",
                "harness_api",
            ]
        for n in range(schedulers):
            self._argv[f"scheduler-{n}"] = [sys.executable, "-m", "harness_worker.scheduler"]
        for n in range(workers):
            self._argv[f"worker-{n}"] = [
                sys.executable, "-m", "harness_worker", "--processes", str(processes),
            ]  # fmt: skip
        for name in self._argv:
            self.start(name)
        self.key = (self.folder / "admin.key").read_text().strip()
        for n in range(apis):
            self.wait_for_api(n)
        self.wait_for_workers(workers * processes)

    def start(self, name: str) -> None:
        """Start a process by its name."""
        log = (self.folder / f"{name}.log").open("ab")
        self.processes[name] = spawn(self._argv[name], env=self.env, stdout=log)
        log.close()

    def add_worker(self, name: str, *arguments: str) -> None:
        """Start one more worker supervisor with one process."""
        self._argv[name] = [sys.executable, "-m", "harness_worker", "--processes", "1", *arguments]
        self.start(name)

    def kill(self, name: str) -> None:
        """Kill -9 a process that this stack started."""
        self.processes[name].send_signal(signal.SIGKILL)
        self.processes[name].wait()

    def log_of(self, name: str) -> str:
        """Return what a process has printed."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait_for_api(self, n: int) -> None:
        """Wait until API `n` answers."""
        port = self.api_ports[n]
        deadline = time.monotonic() + self.start_s
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=1).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError(f"no API on port {port}: {self.log_of(f'api-{n}')[-2000:]}")

    def wait_for_workers(self, n: int, since: datetime = _EVER) -> None:
        """Wait until `n` worker processes that started after `since` take work: what a test bounds
        begins then, not with the start of an interpreter on a busy machine.
        """
        deadline = time.monotonic() + self.start_s
        while time.monotonic() < deadline:
            found = self.query(
                "SELECT count(*) AS n FROM workers WHERE died_at IS NULL AND stopping_at IS NULL "
                "AND started_at > %s",
                since,
            )
            if found[0]["n"] >= n:
                return
            time.sleep(0.1)
        raise AssertionError(f"no {n} worker processes: {self.log_of('worker-0')[-2000:]}")

    def now(self) -> datetime:
        """Return the time of Postgres."""
        found: datetime = self.query("SELECT clock_timestamp() AS now")[0]["now"]
        return found

    def client(self, n: int = 0) -> httpx.Client:
        """Return an HTTP client of API `n`, with the admin key."""
        return httpx.Client(
            base_url=f"http://127.0.0.1:{self.api_ports[n]}",
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=30,
        )

    def query(self, statement: str, *params: object) -> list[dict[str, Any]]:
        """Ask Postgres directly: the auditor's view."""
        with psycopg.connect(self.postgres.url, row_factory=dict_row, autocommit=True) as conn:
            return conn.execute(statement, params).fetchall()

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for process in reversed(list(self.processes.values())):
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + 15
        for process in self.processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        self.valkey.stop()
        self.postgres.destroy()
        shutil.rmtree(self.folder, ignore_errors=True)
