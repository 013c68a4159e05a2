"""The processes under attack: two of each, one of them behind proxies, and a worker whose clock is
an hour off.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psutil
import psycopg
from psycopg.rows import dict_row

from harness_common.embedded.process import free_port
from tests.chaos.proxies import Proxies
from tests.chaos.small_disk import SmallDisk
from tests.e2e.stack import Stack

LEASE_S = 3.0
DATABASE_TIMEOUT_S = 5
SECOND_TENANT = "second"


def with_port(url: str, port: int) -> str:
    """Return a URL that leads to another loopback port."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rsplit(':', 1)[0]}:{port}"))


def faketime_library() -> Path | None:
    """Find libfaketime (Debian: `apt-get install libfaketime`), or None."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


class ChaosStack(Stack):
    """`api-0`, `scheduler-0`, `worker-0` (two processes) go straight to Postgres and Valkey;
    `api-1` with `scheduler-1`, and `worker-1`, through proxies of their own; `worker-2` has a wrong
    clock.
    """

    def __init__(self, *, small_disk: bool, plain: bool = False) -> None:
        super().__init__(apis=1, schedulers=1, workers=1, processes=2)
        self._plain = plain
        self._wants_disk = small_disk
        self.disk: SmallDisk | None = None
        self.proxies = Proxies()
        self.faketime = faketime_library()
        self.keys: list[str] = []
        self.lock = threading.Lock()
        root = self.folder / "files"
        root.mkdir()
        self.effects = root / "outbox" / "effects.txt"
        self._extra = {
            "HARNESS_TOOL__FILE_ROOT": str(root),
            "HARNESS_WORKER__TOOLS": '["tests.chaos.tools"]',
            "HARNESS_DATABASE__TIMEOUT_S": str(DATABASE_TIMEOUT_S),
        }
        self._local = threading.local()

    def _open(self) -> None:
        super()._open()
        self.keys = [self.key, asyncio.run(self._second_tenant())]
        if self._wants_disk:
            self._use_small_disk()
        api = self._proxied("api")
        port = free_port()
        self.api_ports.append(port)
        self.add("api-1", "harness_api", HARNESS_API__PORT=str(port), **api)
        self.add("scheduler-1", "harness_worker.scheduler", **api)
        self.add_supervisor("worker-1", **({} if self._plain else self._proxied("worker")))
        if self._plain:
            self.add_supervisor("worker-2")
        elif self.faketime is not None:
            self.skew("+1h")
        self.wait_for_api(1)

    def add(self, name: str, module: str, *arguments: str, **env: str) -> None:
        """Start `python -m module` with more environment under a name."""
        pairs = [f"{key}={value}" for key, value in env.items()]
        self._argv[name] = ["env", *pairs, sys.executable, "-m", module, *arguments]
        self.start(name)

    def add_supervisor(self, name: str, **env: str) -> None:
        """Start a worker supervisor with one process."""
        self.add(name, "harness_worker", "--processes", "1", **env)

    def skew(self, offset: str) -> None:
        """Start `worker-2` with a clock that is off, such as by `+1h`."""
        assert self.faketime is not None
        self.add_supervisor(
            "worker-2",
            LD_PRELOAD=str(self.faketime),
            FAKETIME=offset,
            FAKETIME_DONT_FAKE_MONOTONIC="1",
            PYTHONPATH=str(Path(__file__).parent / "wrong_clock"),
        )

    def _proxied(self, who: str) -> dict[str, str]:
        postgres = self.proxies.add(f"postgres-{who}", self.postgres.port)
        valkey = self.proxies.add(f"valkey-{who}", self.valkey.port)
        return {
            "HARNESS_DATABASE_URL": with_port(self.postgres.url, postgres),
            "HARNESS_REDIS_URL": with_port(self.valkey.url, valkey),
        }

    async def _second_tenant(self) -> str:
        from harness_common.settings import Settings
        from harness_common.store import keys
        from harness_common.store.bootstrap import ensure_tenant
        from harness_common.store.db import Database

        config = Settings(data_dir=self.folder)
        pepper = keys.load_pepper(config)
        async with Database(self.postgres.url) as db, db.transaction() as conn:
            tenant: UUID = (await ensure_tenant(conn, config, SECOND_TENANT, 10.0))["tenant_id"]
            new = keys.NewKey("admin", "admin")
            _, text = await keys.insert_key(conn, tenant, pepper, new, 10.0)
        return text

    def _use_small_disk(self) -> None:
        """Put events and checkpoints, which every commit extends, on a disk that can be filled."""
        owner = self.postgres.cluster.stat()
        self.disk = SmallDisk(self.folder / "small", owner.st_uid, owner.st_gid)
        with psycopg.connect(self.postgres.url, autocommit=True) as conn:
            conn.execute(f"CREATE TABLESPACE small LOCATION '{self.disk.path / 'tables'}'".encode())
            for name in ("events", "checkpoints"):
                rows = conn.execute(
                    "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid "
                    "WHERE i.inhparent = %s::regclass",
                    (name,),
                ).fetchall()
                for (table,) in rows:
                    conn.execute(f"ALTER TABLE {table} SET TABLESPACE small".encode())

    def ask(self, statement: str, *params: object) -> list[dict[str, Any]]:
        """Ask Postgres directly over a connection kept for this thread, for quick samples."""
        conn = getattr(self._local, "conn", None)
        if conn is None or conn.closed:
            conn = psycopg.connect(
                self.postgres.url, row_factory=dict_row, autocommit=True, connect_timeout=3
            )
            self._local.conn = conn
        rows: list[dict[str, Any]] = conn.execute(statement, params).fetchall()
        return rows

    @contextmanager
    def snapshot(self) -> Iterator[Callable[..., list[dict[str, Any]]]]:
        """Give a way to ask Postgres over and over as it is at one moment."""
        with psycopg.connect(self.postgres.url, row_factory=dict_row) as conn:
            conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            yield lambda statement, *params: conn.execute(statement, params).fetchall()

    def worker_processes(self) -> list[psutil.Process]:
        """List the worker processes of every supervisor, oldest first."""
        found: list[psutil.Process] = []
        for name, process in list(self.processes.items()):
            if name.startswith("worker-") and process.poll() is None:
                try:
                    found += psutil.Process(process.pid).children()
                except psutil.Error:
                    continue
        return sorted(found, key=lambda p: p.create_time())

    def _close(self) -> None:
        super()._close()
        self.proxies.close()
        if self.disk is not None:
            self.disk.close()
            shutil.rmtree(self.folder, ignore_errors=True)
