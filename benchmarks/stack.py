"""A throw-away stack: Postgres (fsync on) and Valkey in a folder below /var/tmp, databases cloned
from a migrated template, and the platform's own processes. Everything is stopped and removed at
the end, also on Ctrl-C.

`Stack` lives as long as the benchmark run; each measurement opens a `Lab` on it, which is an empty
database, an empty Valkey and the processes it asks for.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

# The Celery app wants to know its broker when it is imported; nothing here uses that app.
os.environ.setdefault("HARNESS_REDIS_URL", "redis://127.0.0.1:1/0")

import httpx
import psycopg
import redis

from harness_common.embedded import (
    EmbeddedPostgres,
    EmbeddedValkey,
    clone_database,
    create_database,
    drop_database,
)
from harness_common.embedded.files import tail
from harness_common.embedded.process import end_process, free_port, spawn
from harness_common.settings import LogSettings, SchedulerSettings, Settings
from harness_common.store.migrate import migrate
from harness_common.telemetry.logs import configure_logging

ROOT: Final = Path(__file__).resolve().parents[1]
MAX_RUNNING: Final = 20_000
_TEMPLATE: Final = "bench_template"

Say = Callable[[str], None]


class BenchFailed(Exception):
    """A benchmark could not be carried through."""


class Proc:
    """One started process and its log."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    def check(self) -> None:
        """Raise `BenchFailed` with the end of the log when the process has ended."""
        code = self.process.poll()
        if code is not None:
            raise BenchFailed(f"{self.name} ended with code {code}:\n{tail(self.log, 30)}")

    def stop(self, wait_s: float = 20.0) -> None:
        """End it, by force after `wait_s`."""
        end_process(self.process, ((signal.SIGTERM, wait_s),))


class Stack:
    """Postgres and Valkey of their own. Use as a context manager."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self._undo = contextlib.ExitStack()
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        configure_logging(LogSettings(level="error"))
        _raise_file_limit()
        with self._undo:
            self.folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="harness-bench-"))
            self._undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.folder.chmod(0o711)  # Postgres runs as `nobody` when we are root
            self.say(f"starting Postgres and Valkey in {self.folder}")
            self.postgres = EmbeddedPostgres(self.folder)
            self._undo.callback(self.postgres.destroy)
            self.postgres.start()
            self.valkey = EmbeddedValkey(self.folder)
            self._undo.callback(self.valkey.stop)
            self.valkey.start()
            migrate(create_database(self.postgres.admin_url, _TEMPLATE), 2)
            self._undo = self._undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.say("stopping and removing everything")
        self._undo.close()

    def admin(self) -> psycopg.Connection[tuple[object, ...]]:
        """Connect to the maintenance database, so that this connection is in nobody's counters."""
        return psycopg.connect(self.postgres.admin_url, autocommit=True)

    def redis(self, db: int = 0) -> redis.Redis:
        """Connect to Valkey."""
        return redis.Redis.from_url(self.redis_url(db))

    def redis_url(self, db: int = 0) -> str:
        """Return the URL of one of Valkey's databases."""
        return f"{self.valkey.url.rsplit('/', 1)[0]}/{db}"

    def lab(self, name: str, env: Mapping[str, str] | None = None) -> Lab:
        """Return a lab with an empty database; `env` is added to its processes' environment."""
        return Lab(self, f"{name}_{next(self._numbers)}", env or {})


class Lab:
    """One measurement's database and processes. Use as a context manager."""

    def __init__(self, stack: Stack, name: str, env: Mapping[str, str]) -> None:
        self.stack = stack
        self.name = name
        self.say = stack.say
        self._extra = dict(env)
        self._procs: list[Proc] = []
        self.folder = stack.folder / name

    def __enter__(self) -> Self:
        self.folder.mkdir()
        with self.stack.redis() as client:
            client.flushall()
        # Copying by files makes a Postgres checkpoint: every lab starts right after one.
        self.database_url = clone_database(self.stack.postgres.admin_url, _TEMPLATE, self.name)
        self.worker_database_url = self.database_url
        self.settings = Settings(
            database_url=self.database_url,
            redis_url=self.stack.redis_url(),
            data_dir=self.folder / "data",
            scheduler=SchedulerSettings(max_running=MAX_RUNNING, tenant_max_running=MAX_RUNNING),
        )
        return self

    def __exit__(self, *_: object) -> None:
        for proc in reversed(self._procs):
            if proc.process.poll() is None:
                proc.process.terminate()
        for proc in reversed(self._procs):
            proc.stop()
        drop_database(self.stack.postgres.admin_url, self.name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self, proc: Proc) -> None:
        """End a process that is not needed any more."""
        self._procs.remove(proc)
        proc.stop()

    def check(self) -> None:
        """Raise `BenchFailed` when a process has ended by itself."""
        for proc in self._procs:
            proc.check()

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the processes; no HARNESS_ setting of ours leaks in."""
        clean = {k: v for k, v in os.environ.items() if not k.startswith("HARNESS_")}
        return {
            **clean,
            "HARNESS_DATABASE_URL": self.worker_database_url,
            "HARNESS_REDIS_URL": self.stack.redis_url(),
            "HARNESS_DATA_DIR": str(self.folder / "data"),
            "HARNESS_WORKER__TASK_EVENTS": "false",
            "HARNESS_SCHEDULER__MAX_RUNNING": str(MAX_RUNNING),
            "HARNESS_SCHEDULER__TENANT_MAX_RUNNING": str(MAX_RUNNING),
            # Most benchmarks begin all their runs at once, whatever the workers can hold.
            "HARNESS_SCHEDULER__WORKER_FACTOR": "1000",
            "HARNESS_LOG__LEVEL": "warning",
            **self._extra,
        }

    def start(
        self, name: str, module: str, args: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> Proc:
        """Start `python -m module`; its output goes to a log that is shown when it fails."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            process = spawn(
                [sys.executable, "-m", module, *args],
                env=self.environment() | dict(env or {}),
                stdout=out,
                cwd=ROOT,
            )
        proc = Proc(name, process, log)
        self._procs.append(proc)
        return proc

    def start_scheduler(self) -> Proc:
        """Start a scheduler and wait until it leads."""
        proc = self.start("scheduler", "harness_worker.scheduler")
        self.wait("the scheduler", "SELECT count(*) >= 1 FROM leader WHERE until > now()")
        return proc

    def start_workers(self, processes: int, env: Mapping[str, str] | None = None) -> Proc:
        """Start a supervisor and wait until all its worker processes are registered."""
        args = ["--processes", str(processes)]
        proc = self.start("workers", "harness_worker", args, env)
        self._wait_workers(processes)
        return proc

    def start_one_worker(self, env: Mapping[str, str] | None = None) -> Proc:
        """Start one worker process without a supervisor, so that its pid is the worker's."""
        proc = self.start("worker", "harness_worker.child", (), env)
        self._wait_workers(1)
        return proc

    def start_api(self) -> str:
        """Start the API and wait until it is ready; returns its base URL."""
        port = free_port()
        self.start("api", "harness_api", (), {"HARNESS_API__PORT": str(port)})
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return httpx.get(f"{url}/readyz").status_code == 200
            return False

        self.wait_for("the API", ready)
        return url

    def _wait_workers(self, count: int) -> None:
        self.wait(
            f"{count} worker processes",
            f"SELECT count(*) >= {count} FROM workers WHERE died_at IS NULL",
        )

    def wait(self, what: str, query: str, timeout_s: float = 60.0) -> None:
        """Wait until a query gives true."""
        with psycopg.connect(self.database_url, autocommit=True) as conn:

            def true() -> bool:
                row = conn.execute(query.encode()).fetchone()
                return bool(row and row[0])

            self.wait_for(what, true, timeout_s)

    def wait_for(self, what: str, ready: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until `ready()`; raises `BenchFailed` after `timeout_s` or when a process ends."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                logs = "\n".join(f"--- {p.name}\n{tail(p.log, 10)}" for p in self._procs)
                raise BenchFailed(f"{what} did not come about in {timeout_s:g} s\n{logs}")
            time.sleep(0.05)


def _raise_file_limit() -> None:
    """Let children open as many files as the system allows: thousands of connections each."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
