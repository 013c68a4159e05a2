"""The way to a collector: OTLP over HTTP, by the OpenTelemetry SDK. Imported when traces are on."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Sequence
from contextvars import Token
from typing import Final

from opentelemetry.context import Context, attach, detach
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from harness_common.settings import TelemetrySettings
from harness_common.telemetry.export import Outcome, SpanQueue
from harness_common.telemetry.traces import Place, Span, traces

_KINDS: Final = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_TIMEOUT_S: Final = 10.0
_SCOPE: Final = InstrumentationScope("harness")


def begin(
    config: TelemetrySettings, service: str, instance: str, count: Callable[[Outcome, int], None]
) -> None:
    """Turn the traces of this process on."""
    assert config.otlp_endpoint is not None
    # What it says of a collector that is away is counted and told by the queue.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    exporter = OTLPSpanExporter(
        endpoint=config.traces_url(),
        headers={name: value.get_secret_value() for name, value in config.otlp_headers.items()},
        timeout=_TIMEOUT_S,
    )
    resource = Resource.create(
        {
            "service.namespace": "harness",
            "service.name": service,
            "service.instance.id": instance,
            "host.name": platform.node(),
            "process.pid": os.getpid(),
        }
    )

    def send(spans: Sequence[Span]) -> bool:
        result = exporter.export([readable(one, resource) for one in spans])
        return result is SpanExportResult.SUCCESS

    queue = SpanQueue(
        send,
        most=config.max_queued_spans,
        every_s=config.export_every_s,
        count=count,
        hang_up=exporter.shutdown,
    )
    traces.begin(
        queue,
        ratio=config.sample_ratio,
        content=config.content,
        attach=_make_current,
        detach=detach,
    )


def _make_current(place: Place) -> Token[Context]:
    """Let libraries that use OpenTelemetry themselves begin their spans below ours."""
    return attach(set_span_in_context(NonRecordingSpan(_context(place))))


def _context(place: Place) -> SpanContext:
    return SpanContext(place.trace_id, place.span_id, is_remote=True, trace_flags=_SAMPLED)


def readable(span: Span, resource: Resource) -> ReadableSpan:
    """Put a span into the form of the SDK."""
    parent = Place(span.place.trace_id, span.parent_id)
    links = [Link(_context(one.place), {"harness.link": one.how}) for one in span.links]
    status = Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET)
    return ReadableSpan(
        name=span.name,
        context=_context(span.place),
        parent=_context(parent) if span.parent_id else None,
        resource=resource,
        attributes=dict(span.attributes),
        links=links,
        kind=_KINDS[span.kind],
        status=status,
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=_SCOPE,
    )
