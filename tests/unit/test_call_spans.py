"""The spans of model and tool calls: the names of the GenAI conventions, and no word of anybody
unless a setting asks for it; a secret never.
"""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from harness_common.contracts.model import ChatRequest, ChatResult, Usage
from harness_common.contracts.tool import EffectClass, Tool, ToolSpec
from harness_common.core.errors import Transient
from harness_common.core.message import Message, Text, ToolResult, ToolUse, user
from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import CallStatus
from harness_common.redaction import redactor
from harness_common.telemetry.traces import Place, Span, traces
from harness_worker.telemetry import metrics
from harness_worker.telemetry.model_calls import ModelCall
from harness_worker.telemetry.tool_calls import WatchedCall
from tests.unit.test_run_spans import run_of
from tests.unit.test_traces import tracing

WORDS, SECRET = "canary-of-a-tenant", "s3cr3t-canary-1234"
REQUEST = ChatRequest(
    "gpt-5-mini",
    [
        user(f"{WORDS} {SECRET}"),
        Message("assistant", (ToolUse("call_0", "look", {"q": f"{WORDS} {SECRET}"}),)),
        Message("user", (ToolResult("call_0", f"{WORDS} {SECRET}"),)),
    ],
    system=f"{WORDS} {SECRET}",
    max_tokens=77,
    temperature=0.5,
    step=3,
)
ANSWER = ChatResult(
    Message("assistant", (Text(f"{WORDS} {SECRET}"),)),
    Usage(100, 20, cached_input_tokens=30),
    "stop",
    "gpt-5-mini-2026-08-07",
    cost_usd=0.25,
    first_token_ms=120.0,
)
LOOK = Tool(ToolSpec("look", "Looks.", {"type": "object"}, EffectClass.READ), lambda ctx: None)


def call_model(content: bool) -> Span:
    redactor.add(uuid4(), SECRET)
    with tracing(content=content) as kept:
        outer = traces.start("step", Place(5, 6))
        with traces.inside(outer), ModelCall(run_of(), "openai", REQUEST, streams=True) as seen:
            seen.answered(ANSWER)
    return kept.spans[0]


def test_a_model_call_is_told_by_the_conventions_without_a_word():
    span = call_model(content=False)
    assert (span.name, span.kind) == ("chat gpt-5-mini", "client")
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5-mini",
        "gen_ai.request.max_tokens": 77,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": True,
        "gen_ai.response.model": "gpt-5-mini-2026-08-07",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.response.time_to_first_chunk": 0.12,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 30,
        "gen_ai.agent.name": "walker",
        "gen_ai.conversation.id": "sess_" + "0" * 31 + "2",
        "harness.cost_usd": 0.25,
    }
    assert expected.items() <= span.attributes.items()
    assert WORDS not in repr(span)
    assert SECRET not in repr(span)


def test_content_is_there_when_asked_for_but_no_secret():
    span = call_model(content=True)
    said = json.loads(str(span.attributes["gen_ai.input.messages"]))
    assert [m["role"] for m in said] == ["user", "assistant", "user"]
    assert said[0]["parts"] == [{"type": "text", "content": f"{WORDS} [redacted]"}]
    assert said[1]["parts"][0]["arguments"] == {"q": f"{WORDS} [redacted]"}
    assert said[2]["parts"][0]["type"] == "tool_call_response"
    assert WORDS in str(span.attributes["gen_ai.output.messages"])
    assert WORDS in str(span.attributes["gen_ai.system_instructions"])
    assert SECRET not in repr(span)


def test_a_failed_call_is_counted_by_its_code_also_without_traces():
    before = metrics.model_calls.labels("openai", "MODEL_UNAVAILABLE")._value.get()
    with pytest.raises(Transient), ModelCall(run_of(), "openai", REQUEST):
        raise Transient("no", code="MODEL_UNAVAILABLE")
    after = metrics.model_calls.labels("openai", "MODEL_UNAVAILABLE")._value.get()
    assert after == before + 1


def call_tool(tool: Tool | None, content: bool, status: CallStatus, error: str | None) -> Span:
    redactor.add(uuid4(), SECRET)
    arguments = {"q": f"{WORDS} {SECRET}"}
    outcome = CallOutcome(0, "call_0", f"{WORDS}-tool", status, f"{WORDS} {SECRET}", error)
    with tracing(content=content) as kept:
        outer = traces.start("step", Place(5, 6))
        with traces.inside(outer), WatchedCall(run_of(), "2.0", "call_0", tool, arguments) as seen:
            seen.ended(outcome)
    return kept.spans[0]


def test_a_tool_call_is_told_by_the_conventions_without_a_word():
    span = call_tool(LOOK, False, CallStatus.FAILED, "TIMEOUT")
    assert span.name == "execute_tool look"
    assert span.attributes["gen_ai.operation.name"] == "execute_tool"
    assert span.attributes["gen_ai.tool.name"] == "look"
    assert span.attributes["gen_ai.tool.call.id"] == "call_0"
    assert (span.error, span.attributes["harness.effect"]) == ("TIMEOUT", "read")
    assert WORDS not in repr(span)


def test_arguments_and_result_are_there_when_asked_for_but_no_secret():
    span = call_tool(LOOK, True, CallStatus.SUCCEEDED, None)
    assert WORDS in str(span.attributes["gen_ai.tool.call.arguments"])
    assert WORDS in str(span.attributes["gen_ai.tool.call.result"])
    assert span.error is None
    assert SECRET not in repr(span)


def test_a_tool_that_the_model_made_up_is_not_named():
    span = call_tool(None, False, CallStatus.REJECTED, "TOOL_NOT_FOUND")
    assert span.name == "execute_tool"
    assert "gen_ai.tool.name" not in span.attributes
    assert WORDS not in repr(span)


def test_outside_of_a_step_there_is_no_span():
    with tracing() as kept, ModelCall(run_of(), "openai", REQUEST) as seen:
        seen.answered(ANSWER)
    assert kept.spans == []


def test_a_step_of_a_run_that_is_not_kept_has_no_spans_below_it_either():
    with tracing(ratio=0.0) as kept:
        outer = traces.start("step", Place(5, 6))
        with traces.inside(outer), ModelCall(run_of(), "openai", REQUEST) as seen:
            seen.answered(ANSWER)
    assert outer is None
    assert kept.spans == []
