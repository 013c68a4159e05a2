"""What is seen of one call to a model: a span by the GenAI conventions, tokens, money and times."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, assert_never

import orjson

from harness_common.contracts.model import ChatRequest, ChatResult
from harness_common.core.errors import Limited
from harness_common.core.message import Block, Json, Message, Text, ToolResult, ToolUse
from harness_common.store.rows import StoredRun
from harness_common.store.spans import about
from harness_common.telemetry.traces import Span, code_of, harmless, traces
from harness_worker.telemetry import metrics

_MOST_MESSAGES: Final = 50
"""The newest messages of a request that a span holds, when it may hold any."""


class ModelCall:
    """Watches one call. Use it with `with`, and tell it the answer."""

    __slots__ = ("_begun_s", "_provider", "_scope", "_span")

    def __init__(
        self, run: StoredRun | None, provider: str, request: ChatRequest, *, streams: bool = False
    ) -> None:
        self._provider = metrics.providers(provider)
        self._begun_s = time.perf_counter()
        self._span = _begin(run, provider, request, streams) if traces.on else None
        self._scope = traces.inside(self._span)

    def __enter__(self) -> ModelCall:
        self._scope.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        took_s = time.perf_counter() - self._begun_s
        metrics.timed(metrics.model_call_seconds, self._provider).observe(took_s)
        outcome = "answered" if error is None else metrics.codes(code_of(error))
        metrics.count(metrics.model_calls, self._provider, outcome).inc()
        if isinstance(error, Limited):
            metrics.count(metrics.provider_refusals, self._provider).inc()
        self._scope.__exit__(kind, error, trace)

    def answered(self, answer: ChatResult) -> None:
        """Take note of the answer."""
        usage, provider = answer.usage, self._provider
        metrics.count(metrics.tokens, provider, "input").inc(usage.input_tokens)
        metrics.count(metrics.tokens, provider, "output").inc(usage.output_tokens)
        if answer.cost_usd:
            metrics.count(metrics.cost_usd, provider).inc(answer.cost_usd)
        if answer.first_token_ms is not None:
            metrics.timed(metrics.first_token_seconds, provider).observe(
                answer.first_token_ms / 1e3
            )
        if self._span is not None:
            _note_answer(self._span, answer)


@harmless
def _begin(
    run: StoredRun | None, provider: str, request: ChatRequest, streams: bool
) -> Span | None:
    span = traces.start(
        f"chat {request.model}",
        traces.current,
        kind="client",
        attributes=about(run) if run is not None else None,
    )
    if span is None:
        return None
    for name, value in (
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.provider.name", provider),
        ("gen_ai.request.model", request.model),
        ("gen_ai.request.max_tokens", request.max_tokens),
        ("gen_ai.request.temperature", request.temperature),
        ("gen_ai.request.stream", streams or None),
    ):
        span.set(name, value)
    span.put(step=request.step)
    if traces.content:
        span.set("gen_ai.system_instructions", request.system)
        span.set("gen_ai.input.messages", _text(request.messages[-_MOST_MESSAGES:]))
    return span


@harmless
def _note_answer(span: Span, answer: ChatResult) -> None:
    usage = answer.usage
    span.set("gen_ai.response.model", answer.model.partition("/")[2] or answer.model)
    span.set("gen_ai.response.finish_reasons", (answer.finish,))
    span.set("gen_ai.usage.input_tokens", usage.input_tokens)
    span.set("gen_ai.usage.output_tokens", usage.output_tokens)
    span.set("gen_ai.usage.cache_read.input_tokens", usage.cached_input_tokens or None)
    span.set("gen_ai.usage.cache_creation.input_tokens", usage.cache_write_tokens or None)
    if answer.first_token_ms is not None:
        span.set("gen_ai.response.time_to_first_chunk", answer.first_token_ms / 1e3)
    span.put(cost_usd=answer.cost_usd)
    if traces.content:
        span.set("gen_ai.output.messages", _text([answer.message]))


def _text(messages: Sequence[Message]) -> str:
    """Write messages in the form of the GenAI conventions."""
    shown = [{"role": m.role, "parts": [_part(block) for block in m.content]} for m in messages]
    return orjson.dumps(shown, default=str).decode()


def _part(block: Block) -> Json:
    match block:
        case Text(text):
            return {"type": "text", "content": text}
        case ToolUse(id, name, arguments, raw):
            return {"type": "tool_call", "id": id, "name": name, "arguments": raw or arguments}
        case ToolResult(id, content):
            return {"type": "tool_call_response", "id": id, "response": content}
    assert_never(block)
