"""A real HTTP server on loopback that answers as told and keeps what it was asked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Page:
    """What a path answers with."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    cut: bool = False
    """Close the connection in place of an answer."""
    cut_body: bool = False
    """Close the connection in the middle of the body."""
    wait: threading.Event | None = None
    """Answer only after this."""


@dataclass(frozen=True)
class Seen:
    """One request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class HttpServer(ThreadingHTTPServer):
    """Serves `pages` by path, without their query."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages: dict[str, Page] = {}
        self.seen: list[Seen] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.seen.append(Seen(self.command, self.path, dict(self.headers), body))
        page = self.server.pages.get(self.path.partition("?")[0], Page(status=404))
        if page.wait is not None:
            page.wait.wait(10)
        if page.cut:
            self.close_connection = True
            self.connection.close()
            return
        self.send_response(page.status)
        for name, value in page.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(page.body) + (10 if page.cut_body else 0)))
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(OSError):
                self.wfile.write(page.body)
        if page.cut_body:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer


@contextlib.contextmanager
def serving() -> Iterator[HttpServer]:
    """Run a server for as long as the block lasts."""
    with HttpServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
