"""The way out of a cage with allowed hosts: from its own loopback to the worker's egress proxy.

Most clients speak to a proxy over TCP only, so a thread of the runner listens in the cage's own
empty network and passes bytes to the one Unix socket that is bound in.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading

from harness_worker.sandbox.layout import PROXY_INSIDE

_PORT = 3128
_CHUNK = 65_536


def start() -> None:
    """Listen, and point the environment's proxies at it."""
    server = socket.create_server(("127.0.0.1", _PORT), backlog=64)
    threading.Thread(target=_serve, args=(server,), daemon=True).start()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"):
        os.environ[name] = f"http://127.0.0.1:{_PORT}"


def _serve(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        with contextlib.suppress(OSError):
            up = socket.socket(socket.AF_UNIX)
            up.connect(PROXY_INSIDE)
            for one, other in ((client, up), (up, client)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()
            continue
        client.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
