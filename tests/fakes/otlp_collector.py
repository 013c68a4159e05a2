"""A collector of OTLP over HTTP: keeps every span that it is sent, as plain values."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

KINDS = ("unspecified", "internal", "server", "client", "producer", "consumer")


@dataclass(frozen=True)
class Link:
    trace_id: str
    span_id: str
    how: str


@dataclass(frozen=True)
class Received:
    """One span."""

    service: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    start_ns: int
    end_ns: int
    error: str | None
    attributes: dict[str, Any]
    links: tuple[Link, ...] = field(default_factory=tuple)


class Collector:
    """Listens on a free port of loopback. Use it with `with`."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.fail_with = 0
        """Answer this status instead of taking anything."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if outer.fail_with:
                    self.send_response(outer.fail_with)
                    self.end_headers()
                    return
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                outer.headers.append({k.lower(): v for k, v in self.headers.items()})
                outer.take(self.path, body)
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.end_headers()
                self.wfile.write(ExportTraceServiceResponse().SerializeToString())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces", path
        self.bodies.append(body)
        message = ExportTraceServiceRequest()
        message.ParseFromString(body)
        for resource in message.resource_spans:
            about = {a.key: value_of(a.value) for a in resource.resource.attributes}
            for scope in resource.scope_spans:
                self.spans += [read(about["service.name"], span) for span in scope.spans]

    def wait_for(self, enough: Callable[[list[Received]], Any], limit_s: float = 30.0) -> Any:
        """Wait until `enough` says something true of the spans; returns it."""
        deadline = time.monotonic() + limit_s
        while not (found := enough(list(self.spans))):
            names = sorted(s.name for s in self.spans)
            assert time.monotonic() < deadline, f"only {len(names)} spans: {names}"
            time.sleep(0.05)
        return found

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def value_of(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [value_of(one) for one in value.array_value.values]
    return getattr(value, kind) if kind else None


def read(service: str, span: Any) -> Received:
    attributes = {a.key: value_of(a.value) for a in span.attributes}
    links = tuple(
        Link(
            one.trace_id.hex(),
            one.span_id.hex(),
            {a.key: value_of(a.value) for a in one.attributes}.get("harness.link", ""),
        )
        for one in span.links
    )
    return Received(
        service,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        KINDS[span.kind],
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.message if span.status.code == 2 else None,
        attributes,
        links,
    )
