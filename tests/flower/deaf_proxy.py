"""A TCP proxy in front of Valkey that can make subscribers deaf: what is published no longer
reaches them, and nobody is told. All else goes on.
"""

from __future__ import annotations

import contextlib
import socket
import threading


class DeafProxy:
    """Use with `with`; set `deaf` at any time."""

    def __init__(self, host: str, port: int) -> None:
        self.deaf = False
        self._target = (host, port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> DeafProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = socket.create_connection(self._target)
                subscribed = threading.Event()
                for pump in (self._requests, self._replies):
                    threading.Thread(
                        target=pump, args=(client, server, subscribed), daemon=True
                    ).start()

    def _requests(
        self, client: socket.socket, server: socket.socket, subscribed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := client.recv(65536):
                if b"PSUBSCRIBE" in data:
                    subscribed.set()
                server.sendall(data)

    def _replies(
        self, client: socket.socket, server: socket.socket, subscribed: threading.Event
    ) -> None:
        with contextlib.suppress(OSError), client, server:
            while data := server.recv(65536):
                if not (self.deaf and subscribed.is_set()):
                    client.sendall(data)
