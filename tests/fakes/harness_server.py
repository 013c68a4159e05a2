"""A small HTTP server that answers as it is told, and can cut connections in the middle."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

RUN = "run_" + "1" * 32
SESSION = "sess_" + "2" * 32
ARTIFACT = "art_" + "3" * 32
KEY = "key_" + "4" * 32
AT = "2026-01-31T12:00:00Z"


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


@dataclass
class Answer:
    """What to answer: `body` as JSON, or `raw` bytes; `cut` breaks the connection after them."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    cut: bool = False


CUT = Answer(status=0, cut=True)
"""No answer at all."""


def problem(status: int, code: str, detail: str, **more: Any) -> Answer:
    body = {
        "type": "urn:x", "title": "t", "status": status, "code": code, "detail": detail,
        "request_id": "req_1", **more,
    }  # fmt: skip
    return Answer(status, body, {"Content-Type": "application/problem+json"})


def page(*data: Any, cursor: str | None = None) -> Answer:
    return Answer(body={"data": list(data), "next_cursor": cursor})


def run_view(status: str = "queued", **more: Any) -> dict[str, Any]:
    return {
        "id": RUN,
        "session_id": SESSION,
        "agent": {"name": "a", "version": 1},
        "status": status,
        "input": "hi",
        "output": "42" if status == "succeeded" else None,
        "stop_reason": None,
        "created_at": AT,
        "scripted": True,
        **more,
    }


def event(seq: int, type_: str, at_step: int | None = None, **payload: Any) -> dict[str, Any]:
    return {"seq": seq, "type": type_, "step": at_step, "at": AT, "payload": payload}


def sse(*items: dict[str, Any] | str) -> bytes:
    """Write events with their ids, live items (without `seq`), or raw text."""
    out = b""
    for item in items:
        if isinstance(item, str):
            out += item.encode()
            continue
        first = f"id: {item['seq']}\n" if "seq" in item else ""
        data = json.dumps(item, ensure_ascii=False)
        out += f"{first}event: {item['type']}\ndata: {data}\n\n".encode()
    return out


def stream(*items: dict[str, Any] | str, cut: bool = False) -> Answer:
    return Answer(headers={"Content-Type": "text/event-stream"}, raw=sse(*items), cut=cut)


END = 'event: end\ndata: {"status": "succeeded", "last_seq": 0}\n\n'
WAIT = 'event: wait\ndata: {"status": "waiting_input", "last_seq": 0}\n\n'


class FakeServer:
    """`on(route, *answers)` queues answers for "GET /path"; the last one is given for ever."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._answers: dict[str, deque[Answer | Callable[[Seen], Answer]]] = defaultdict(deque)

    def on(self, route: str, *answers: Answer | Callable[[Seen], Answer]) -> None:
        self._answers[route] = deque(answers)

    def take(self, seen: Seen) -> Answer:
        self.seen.append(seen)
        queue = self._answers.get(f"{seen.method} {seen.path}")
        if not queue:
            return problem(404, "NO_SUCH_ROUTE", f"no route {seen.path}")
        answer = queue.popleft() if len(queue) > 1 else queue[0]
        return answer(seen) if callable(answer) else answer

    def requests(self, route: str) -> list[Seen]:
        return [s for s in self.seen if f"{s.method} {s.path}" == route]

    url = ""


def _handler(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            parts = urlsplit(self.path)
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {k.lower(): v for k, v in self.headers.items()}
            body = json.loads(data) if data else None
            answer = server.take(
                Seen(self.command, parts.path, parse_qs(parts.query), headers, body)
            )
            self.close_connection = True
            if answer.status == 0:
                return
            raw = answer.raw
            if raw is None:
                raw = b"" if answer.body is None else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            kind = {"Content-Type": "application/json", "Request-Id": "req_1"}
            for name, value in {**kind, **answer.headers}.items():
                self.send_header(name, value)
            # A length that is never reached makes the end of the connection a cut.
            self.send_header("Content-Length", str(len(raw) + (1000 if answer.cut else 0)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_PUT = do_POST = do_DELETE = do_PATCH = _serve

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@contextmanager
def serve() -> Iterator[FakeServer]:
    fake = FakeServer()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler(fake))
    fake.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
