"""The few calls of the HTTP API that the demo needs, with plain httpx."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import httpx

from examples.analyst.stack import DemoFailed
from harness_common.core.message import Json

_SILENCE_S: Final = 40.0
"""The server pings every 15 s: longer silence is a broken connection."""

_RECONNECTS: Final = 5


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event; `seq` is None for what is live only."""

    seq: int | None
    name: str
    data: dict[str, Any]


class Api:
    """The API as seen by one key."""

    def __init__(self, url: str, key: str) -> None:
        self._client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=15
        )

    def get(self, path: str, **query: str | int) -> Json:
        """Return the JSON of an answer."""
        return self._checked(self._client.get(path, params=query)).json()

    def post(self, path: str, body: Json, **headers: str) -> httpx.Response:
        """Send JSON; a `_` in a header's name stands for `-`."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._checked(self._client.post(path, json=body, headers=named))

    def download(self, path: str) -> httpx.Response:
        """Return an answer whose body is not JSON."""
        return self._checked(self._client.get(path))

    def all(self, path: str, cursor: str = "cursor") -> list[dict[str, Any]]:
        """Return every item of a list; `cursor` names the parameter that takes `next_cursor`."""
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": 200}
        while True:
            page = self.get(path, **query)
            found += page["data"]
            if page["next_cursor"] is None:
                return found
            query[cursor] = page["next_cursor"]

    def follow(self, run_id: str) -> Iterator[Event]:
        """Yield a run's events until it has ended; resumes where a connection broke."""
        last, tries = 0, 0
        while tries <= _RECONNECTS:
            tries += 1
            with contextlib.suppress(httpx.TransportError):
                for event in self._stream(run_id, last):
                    if event.name == "end":
                        return
                    if event.seq is not None:
                        last, tries = event.seq, 0
                    yield event
            time.sleep(0.2)
        raise DemoFailed(f"The event stream broke {tries} times in a row after event {last}.")

    def _stream(self, run_id: str, last: int) -> Iterator[Event]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(last)}
        limits = httpx.Timeout(15, read=_SILENCE_S)
        path = f"/v1/runs/{run_id}/events"
        with self._client.stream("GET", path, headers=headers, timeout=limits) as answer:
            if not answer.is_success:
                answer.read()
            yield from parse_events(self._checked(answer).iter_lines())

    def _checked(self, answer: httpx.Response) -> httpx.Response:
        if answer.is_success:
            return answer
        asked = f"{answer.request.method} {answer.request.url.path}"
        raise DemoFailed(f"{asked} was answered with {answer.status_code}: {answer.text[:1000]}")


def parse_events(lines: Iterator[str]) -> Iterator[Event]:
    """Read server-sent events (HTML standard, 9.2.6) as far as this API uses them; a comment
    becomes an event `ping`.
    """
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(":")
            if not name:
                yield Event(None, "ping", {})
            fields[name] = value.removeprefix(" ")
            continue
        if "data" in fields:
            seq = int(fields["id"]) if "id" in fields else None
            yield Event(seq, fields.get("event", "message"), json.loads(fields["data"]))
        fields = {}
