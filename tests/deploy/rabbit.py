"""A RabbitMQ of Debian's package, as a process of the test: own ports, own folder, no service."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from harness_common.embedded.process import LOOPBACK, free_port, spawn
from tests.deploy.debian import need


class Rabbit:
    """Start with `with`; `stop` and `start` are a restart that keeps what was on disk."""

    def __init__(self, folder: Path) -> None:
        self._program = need("rabbitmq-server", "rabbitmq-server")
        script = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
        self._program = script if script.exists() else self._program
        self._folder = folder
        self.port, dist, self._epmd = free_port(), free_port(), free_port()
        self._env = {
            **os.environ,
            "HOME": str(folder),
            "RABBITMQ_NODENAME": "harness@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": LOOPBACK,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd),
            "ERL_EPMD_ADDRESS": LOOPBACK,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{LOOPBACK}:{self.port}//"

    def __enter__(self) -> Rabbit:
        (self._folder / "rabbitmq.conf").write_text("vm_memory_high_watermark.absolute = 512MB\n")
        (self._folder / "plugins").write_text("[].\n")
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)
        epmd = ["epmd", "-port", str(self._epmd), "-kill"]
        subprocess.run(epmd, env=self._env, capture_output=True, check=False)

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = spawn([self._program], env=self._env, stdout=log)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (self._folder / "server.log").read_text()[-2000:]
            try:
                with socket.create_connection((LOOPBACK, self.port), timeout=1) as conn:
                    conn.sendall(b"AMQP\x00\x00\x09\x01")
                    if conn.recv(1):
                        return
            except OSError:
                time.sleep(0.2)
        raise AssertionError((self._folder / "server.log").read_text()[-2000:])

    def stop(self, how: int = signal.SIGTERM) -> None:
        """End the server, its Erlang included."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        os.killpg(process.pid, how)
        process.wait(60)

    def connection(self) -> Any:
        """Open a connection to look into its queues."""
        from kombu.connection import Connection

        return Connection(self.url)
