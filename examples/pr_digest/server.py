"""A recorded code-hosting server on loopback: it answers from `recorded.json` and writes down every
request that it got, in a file that is only ever appended to.

Used by `run` and its test; alone: `python -m examples.pr_digest.server PORT FILE`.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

RECORDED: Final = json.loads((Path(__file__).parent / "recorded.json").read_text(encoding="utf-8"))
_SLOW_S: Final = 0.1
"""How long a look at one pull request takes."""
_HELD_S: Final = 60.0


class RecordedServer(ThreadingHTTPServer):
    """The server and its record of requests."""

    daemon_threads = True

    def __init__(self, port: int, record: Path, answers: int | None = None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.record = record
        self.lock = threading.Lock()
        self.answers = answers
        """How many looks at pull requests are answered before `go_on`; None for all: so that there
        is a middle to be interrupted.
        """
        self._going_on = threading.Event()

    @property
    def url(self) -> str:
        """Return where it answers."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def go_on(self) -> None:
        """Answer what is held back, and all that comes."""
        self._going_on.set()

    def hold(self) -> None:
        """Wait for `go_on` when so many looks were answered."""
        with self.lock:
            is_free = self.answers is None or self.answers > 0
            if is_free and self.answers is not None:
                self.answers -= 1
        if not is_free:
            self._going_on.wait(_HELD_S)

    def note(self, line: str) -> None:
        """Append one request."""
        with self.lock, self.record.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that died: that is what happens here."""

    def start(self) -> None:
        """Serve on a thread of its own."""
        threading.Thread(target=self.serve_forever, daemon=True).start()


def requests_in(record: Path) -> Counter[str]:
    """Count the requests of a record, by method and path."""
    if not record.exists():
        return Counter()
    return Counter(record.read_text(encoding="utf-8").splitlines())


class _Handler(BaseHTTPRequestHandler):
    server: RecordedServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.server.note(f"GET {self.path}")
        parts = self.path.strip("/").split("/")
        pulls = {str(p["number"]): p for p in RECORDED["pulls"]}
        if parts[-1] == "pulls":
            self._answer(
                200, [{"number": p["number"], "title": p["title"]} for p in pulls.values()]
            )
            return
        self.server.hold()
        time.sleep(_SLOW_S)
        if len(parts) == 5 and parts[-1] in pulls:
            pull = pulls[parts[-1]]
            self._answer(200, {k: v for k, v in pull.items() if k != "checks"})
        elif parts[-1] == "checks" and parts[-2] in pulls:
            self._answer(200, {"number": int(parts[-2]), "checks": pulls[parts[-2]]["checks"]})
        else:
            self._answer(404, {"message": f"nothing at {self.path}"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.note(f"POST {self.path}")
        self._answer(201, {"id": "digest-1", "bytes": len(body)})

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m examples.pr_digest.server PORT FILE")
    RecordedServer(int(sys.argv[1]), Path(sys.argv[2])).serve_forever()
