"""What is seen of one tool call: a span by the GenAI conventions, and how it ended."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final

import orjson

from harness_common.contracts.tool import Tool
from harness_common.core.message import Json
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus
from harness_common.store.rows import StoredRun
from harness_common.store.spans import about
from harness_common.telemetry.traces import Span, harmless, traces
from harness_worker.telemetry import metrics

_NO_TOOL: Final = "none"
_BAD: Final = {CallStatus.FAILED, CallStatus.UNKNOWN, CallStatus.REJECTED, CallStatus.CANCELLED}


class WatchedCall:
    """Watches one call. Use it with `with`, and tell it the outcome.

    `tool` is None when the model asked for one that there is not: its name is the model's text, and
    stays out of the span.
    """

    __slots__ = ("_begun_s", "_effect", "_scope", "_span")

    def __init__(
        self, run: StoredRun, call: str, tool_use_id: str, tool: Tool | None, arguments: Json
    ) -> None:
        self._effect = str(tool.spec.effect) if tool else _NO_TOOL
        self._begun_s = time.perf_counter()
        self._span = _begin(run, call, tool_use_id, tool, arguments) if traces.on else None
        self._scope = traces.inside(self._span)

    def __enter__(self) -> WatchedCall:
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            metrics.count(metrics.tool_calls, self._effect, "interrupted").inc()
        self._scope.__exit__(kind, error, trace)

    def ended(self, outcome: CallOutcome) -> None:
        """Take note of how it ended."""
        took_s = time.perf_counter() - self._begun_s
        metrics.timed(metrics.tool_call_seconds, self._effect).observe(took_s)
        status = "waiting" if outcome.wait is not None else str(outcome.status)
        metrics.count(metrics.tool_calls, self._effect, status).inc()
        if outcome.error_type:
            metrics.count(metrics.tool_errors, metrics.codes(outcome.error_type)).inc()
        if self._span is not None:
            _note_end(self._span, outcome, status)


@harmless
def _begin(
    run: StoredRun, call: str, tool_use_id: str, tool: Tool | None, arguments: Json
) -> Span | None:
    name = tool.spec.name if tool else ""
    span = traces.start(f"execute_tool {name}".strip(), traces.current, attributes=about(run))
    if span is None:
        return None
    span.set("gen_ai.operation.name", "execute_tool")
    span.set("gen_ai.tool.name", name)
    span.set("gen_ai.tool.call.id", tool_use_id)
    span.put(call=call)
    if tool is not None:
        span.set("gen_ai.tool.type", "function")
        span.put(
            tool_version=tool.spec.version,
            effect=str(tool.spec.effect),
            sandbox=str(tool.spec.sandbox),
        )
    if traces.content:
        span.set("gen_ai.tool.call.arguments", orjson.dumps(arguments).decode())
    return span


@harmless
def _note_end(span: Span, outcome: CallOutcome, status: str) -> None:
    span.put(
        status=status,
        call_attempt=outcome.attempt,
        recorded=outcome.recorded or None,
        served_by=outcome.served_by,
    )
    if outcome.status in _BAD:
        span.fail(outcome.error_type or str(outcome.status).upper())
    if traces.content:
        span.set("gen_ai.tool.call.result", outcome.content)
