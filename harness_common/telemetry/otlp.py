"""The way to a collector: OTLP as protobuf over HTTP. Imported when traces are on.

Source: https://opentelemetry.io/docs/specs/otlp (OTLP/HTTP). The SDK is not needed for this, and
where it is installed redis-py loads its half into every process (7 MB, though nobody uses it).
"""

from __future__ import annotations

import gzip
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import Token
from typing import Final

import httpx
from opentelemetry.context import Context, attach, detach
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2 as wire
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from harness_common.settings import TelemetrySettings
from harness_common.telemetry.export import Answer, Outcome, SpanQueue
from harness_common.telemetry.traces import Place, Span, Value, traces

_KINDS: Final = {
    "internal": wire.Span.SPAN_KIND_INTERNAL,
    "server": wire.Span.SPAN_KIND_SERVER,
    "client": wire.Span.SPAN_KIND_CLIENT,
    "producer": wire.Span.SPAN_KIND_PRODUCER,
    "consumer": wire.Span.SPAN_KIND_CONSUMER,
}
_LATER: Final = frozenset({429, 502, 503, 504})
"""What the protocol lets a client try again."""
_TIMEOUT_S: Final = 10.0
_SAMPLED: Final = 1


def begin(
    config: TelemetrySettings, service: str, instance: str, count: Callable[[Outcome, int], None]
) -> None:
    """Turn the traces of this process on."""
    headers = {name: value.get_secret_value() for name, value in config.otlp_headers.items()}
    sender = Sender(config.traces_url(), headers, resource_of(service, instance))
    queue = SpanQueue(
        sender.send,
        most=config.max_queued_spans,
        every_s=config.export_every_s,
        count=count,
        hang_up=sender.close,
    )
    traces.begin(
        queue,
        ratio=config.sample_ratio,
        content=config.content,
        attach=_make_current,
        detach=detach,
    )


def resource_of(service: str, instance: str) -> dict[str, Value]:
    """Say which process speaks, with what `OTEL_RESOURCE_ATTRIBUTES` adds."""
    more = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    pairs = (pair.partition("=") for pair in more.split(",") if "=" in pair)
    return {
        **{name.strip(): value.strip() for name, _, value in pairs},
        "service.namespace": "harness",
        "service.name": service,
        "service.instance.id": instance,
        "host.name": platform.node(),
        "process.pid": os.getpid(),
    }


class Sender:
    """One collector. `send` is called by one thread."""

    def __init__(self, url: str, headers: Mapping[str, str], resource: Mapping[str, Value]) -> None:
        fixed = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}
        self._url = url
        self._client = httpx.Client(headers={**headers, **fixed}, timeout=_TIMEOUT_S)
        self._resource = list(_pairs(resource))

    def send(self, spans: Sequence[Span]) -> Answer:
        """Send a batch; what a collector does not understand is not sent again."""
        body = gzip.compress(encode(spans, self._resource), compresslevel=1)
        try:
            status = self._client.post(self._url, content=body).status_code
        except httpx.HTTPError:
            return "later"
        if status in _LATER:
            return "later"
        return "sent" if 200 <= status < 300 else "refused"

    def close(self) -> None:
        """Hang up."""
        self._client.close()


def _make_current(place: Place) -> Token[Context]:
    """Let libraries that use OpenTelemetry themselves begin their spans below ours."""
    context = SpanContext(place.trace_id, place.span_id, False, TraceFlags(_SAMPLED))
    return attach(set_span_in_context(NonRecordingSpan(context)))


# ── the form on the wire ─────────────────────────────────────────────────────────────────────────


def encode(spans: Sequence[Span], resource: Sequence[KeyValue]) -> bytes:
    """Write a batch as the body of a request."""
    request = ExportTraceServiceRequest()
    of_process = request.resource_spans.add()
    of_process.resource.attributes.extend(resource)
    scope = of_process.scope_spans.add()
    scope.scope.name = "harness"
    scope.spans.extend(_encoded(span) for span in spans)
    body: bytes = request.SerializeToString()
    return body


def _encoded(span: Span) -> wire.Span:
    out = wire.Span(
        trace_id=span.place.trace_id.to_bytes(16, "big"),
        span_id=span.place.span_id.to_bytes(8, "big"),
        parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
        flags=_SAMPLED,
        name=span.name,
        kind=_KINDS[span.kind],
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=_pairs(span.attributes),
    )
    for link in span.links:
        out.links.add(
            trace_id=link.place.trace_id.to_bytes(16, "big"),
            span_id=link.place.span_id.to_bytes(8, "big"),
            attributes=_pairs({"harness.link": link.how}),
        )
    if span.error is not None:
        out.status.code = wire.Status.STATUS_CODE_ERROR
        out.status.message = span.error
    return out


def _pairs(values: Mapping[str, Value]) -> Iterator[KeyValue]:
    return (KeyValue(key=name, value=_any(value)) for name, value in values.items())


def _any(value: Value) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case tuple():
            return AnyValue(array_value=ArrayValue(values=[_any(one) for one in value]))
