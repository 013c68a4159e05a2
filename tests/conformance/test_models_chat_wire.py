"""Chat Completions: what is sent, and how a refusal is classified."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import orjson
import pytest

from harness_common.contracts.model import ChatRequest
from harness_common.core.errors import Limited, Permanent, Transient
from harness_common.core.message import Message, Text, ToolResult, ToolUse, user
from harness_worker.models.chat_messages import chat_messages
from harness_worker.models.openai_chat import OpenAIChat
from harness_worker.models.prices import load_prices
from harness_worker.models.redact import MAX_CHARS, redact
from harness_worker.models.retry_after import MAX_WAIT_S, retry_after_s
from tests.conformance.model_calls import (
    ASK,
    KEY,
    SERVER_DATE,
    STOP,
    TOOL,
    ask,
    fails,
    model_of,
    run,
)
from tests.fakes.openai_server import (
    Answer,
    refusal,
)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "Retry-After": "2"}, 1.5),
        ({"Retry-After": "Sun, 29 Nov 2026 10:00:30 GMT", "Date": SERVER_DATE}, 30.0),
        ({}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0.5s"}, 360.5),
    ],
)
def test_429_is_limited(headers, expected):
    error = fails(
        Limited, refusal(429, "Rate limit reached", code="rate_limit_exceeded", headers=headers)
    )
    assert error.retry_after_s == expected
    provider, model, fingerprint = error.scope.split(":")
    assert (provider, model, len(fingerprint)) == ("openai", "gpt-4.1", 12)
    assert fingerprint not in KEY


def test_retry_after_forms():
    now = datetime(2026, 11, 29, 10, 0, 0, tzinfo=UTC)

    def wait(**headers: str) -> float | None:
        return retry_after_s({k.replace("_", "-"): v for k, v in headers.items()}, now)

    assert wait(retry_after="Sun, 29 Nov 2026 10:01:00 GMT") == 60
    assert wait(retry_after="Sunday, 29-Nov-26 10:01:00 GMT") == 60
    assert wait(retry_after="Sun, 29 Nov 2026 09:00:00 GMT") == 0
    assert wait(retry_after="-5") == 0
    assert wait(retry_after="1e300") == MAX_WAIT_S
    assert [wait(retry_after=v) for v in ("nan", "inf", "soon", "", "Sun, 99 Nov 2026")] == [
        None
    ] * 5
    assert wait(retry_after_ms="x", retry_after="3") == 3
    assert wait(x_ratelimit_remaining_tokens="0", x_ratelimit_reset_tokens="120ms") == 0.12
    assert wait(x_ratelimit_remaining_tokens="5", x_ratelimit_reset_tokens="120ms") is None


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (
            refusal(429, "You exceeded your quota", code="insufficient_quota"),
            Permanent,
            "INSUFFICIENT_QUOTA",
        ),
        (refusal(429, "quota", kind="insufficient_quota"), Permanent, "INSUFFICIENT_QUOTA"),
        (refusal(402, "Insufficient Balance"), Permanent, "INSUFFICIENT_QUOTA"),
        (
            refusal(429, "Request too large for gpt-4.1", kind="tokens"),
            Permanent,
            "REQUEST_TOO_LARGE",
        ),
        (refusal(429, "x", headers={"x-should-retry": "false"}), Permanent, "MODEL_NO_RETRY"),
        (refusal(529, "overloaded"), Limited, "LIMITED"),
        (refusal(503, "busy", headers={"Retry-After": "2"}), Limited, "LIMITED"),
        (refusal(503, "busy"), Transient, "MODEL_UNAVAILABLE"),
        (refusal(500, "oh"), Transient, "MODEL_UNAVAILABLE"),
        (Answer(status=502, body=b"<html>Bad gateway</html>"), Transient, "MODEL_UNAVAILABLE"),
        (refusal(408, "slow"), Transient, "MODEL_UNAVAILABLE"),
        (refusal(400, "odd", headers={"x-should-retry": "true"}), Transient, "MODEL_UNAVAILABLE"),
        (refusal(401, "Incorrect API key"), Permanent, "MODEL_AUTH"),
        (refusal(404, "no such model", code="model_not_found"), Permanent, "MODEL_NOT_FOUND"),
        (refusal(400, "bad", kind="invalid_request_error"), Permanent, "MODEL_BAD_REQUEST"),
        (refusal(400, "no", code="content_policy_violation"), Permanent, "MODEL_REFUSED"),
        (Answer(status=422, body={"detail": [{"msg": "bad"}]}), Permanent, "MODEL_BAD_REQUEST"),
        (Answer(status=307, body=b"", headers={"location": "/x"}), Permanent, "MODEL_BAD_REQUEST"),
        (
            refusal(400, "Your input is long", code="context_length_exceeded"),
            Permanent,
            "CONTEXT_OVERFLOW",
        ),
        (
            refusal(
                400,
                "the request exceeds the available context size",
                code=400,
                kind="exceed_context_size_error",
            ),
            Permanent,
            "CONTEXT_OVERFLOW",
        ),
        (
            Answer(
                status=400,
                body={
                    "object": "error",
                    "type": "BadRequestError",
                    "param": None,
                    "code": 400,
                    "message": "This model's maximum context length is 4096 tokens. "
                    "However, you requested 5000",
                },
            ),
            Permanent,
            "CONTEXT_OVERFLOW",
        ),
        (
            refusal(
                400,
                "The prompt (length 5000) is longer than the maximum model length of 4096",
                kind="BadRequestError",
                code=400,
            ),
            Permanent,
            "CONTEXT_OVERFLOW",
        ),
        (Answer(body={"error": {"message": "boom", "code": 500}}), Transient, "MODEL_UNAVAILABLE"),
        (Answer(body={"ok": True}), Transient, "BAD_STREAM"),
    ],
)
def test_refusals(answer, kind, code):
    assert fails(kind, answer).error_code == code


def test_the_servers_words_are_short_and_redacted():
    words = (
        f"Incorrect key: {KEY}. Bearer abc.def sk-proj-abcdef123456 http://me:pw12@host/ \x00 "
        + "x" * 999
    )
    error = fails(Permanent, refusal(401, words))
    assert "sk-proj" not in error.message
    assert "abc.def" not in error.message
    assert "pw12" not in error.message
    assert "\x00" not in error.message
    assert len(error.message) < MAX_CHARS + 100
    assert redact("plain words") == "plain words"
    assert error.detail["status"] == 401


def sent(request: ChatRequest, name: str = "gpt-4.1") -> Any:
    async def work(server, client):
        await model_of(server, client, name).chat(request)
        return server.requests[0]

    return run(work)


def test_the_request():
    request = replace(
        ASK,
        system="Be brief.",
        temperature=0.5,
        max_tokens=77,
        options={"seed": 1, "script": [], "attempt": 2, "stop": None, "n": 3, "stream": False},
    )
    got = sent(request)
    assert got["headers"]["Authorization"] == f"Bearer {KEY}"
    assert got["body"] == {
        "model": "gpt-4.1",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello?"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "add",
                    "description": "Add two numbers.",
                    "parameters": TOOL.input_schema,
                },
            }
        ],
        "max_tokens": 77,
        "temperature": 0.5,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_schema_of_the_answer_is_sent_where_there_is_a_json_mode():
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}}
    request = replace(ASK, tools=(), answer_schema=schema)
    form = {"name": "answer", "schema": schema}
    wanted = {"type": "json_schema", "json_schema": form}
    assert sent(request)["body"]["response_format"] == wanted
    assert "response_format" not in sent(ASK)["body"]
    own = replace(request, options={"response_format": {"type": "json_object"}})
    assert sent(own)["body"]["response_format"] == {"type": "json_object"}


def test_sampling_is_left_out_for_models_that_refuse_it():
    request = replace(ASK, temperature=0.0, options={"top_p": 1})
    assert {"temperature", "top_p"}.isdisjoint(sent(request, "gpt-5-mini")["body"])
    assert sent(request)["body"]["temperature"] == 0.0


def test_openai_gets_the_new_name_of_max_tokens():
    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "https://api.openai.com/v1/chat/completions"
        body = orjson.loads(request.content)
        assert body["max_completion_tokens"] == ASK.max_tokens
        assert "max_tokens" not in body
        return httpx.Response(200, content=STOP)

    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    asyncio.run(OpenAIChat(client, "o3", prices=load_prices(), api_key=KEY).chat(ASK))


def test_messages_become_what_a_server_accepts():
    uses = (
        ToolUse("c1", "add", {"a": 1}),
        ToolUse("c2", "no such name!", {}, "{broken"),
        ToolUse("c3", "", {}, ""),
    )
    conversation = (
        user("Go."),
        Message("assistant", (Text("I go."), *uses)),
        Message("tool", (ToolResult("c2", "it failed", True, "invalid_arguments"),)),
        user("And hurry."),
        Message("user", (Text("x"), ToolResult("c1", "2"))),
        Message("tool", (ToolResult("gone", "orphan"),)),
        Message("assistant", (Text("Done."),)),
        Message("assistant", ()),
    )
    got = chat_messages(ChatRequest("m", conversation))
    assert [(m["role"], m["content"]) for m in got] == [
        ("user", "Go."),
        ("assistant", "I go."),
        ("tool", "2"),
        ("tool", "Error (invalid_arguments): it failed"),
        ("tool", "Error: this call has no result; it was not carried out or was interrupted."),
        ("user", "And hurry."),
        ("user", "x"),
        ("user", "Result of an earlier tool call: orphan"),
        ("assistant", "Done."),
        ("assistant", ""),
    ]
    calls = got[1]["tool_calls"]
    assert [m["tool_call_id"] for m in got[2:5]] == [c["id"] for c in calls]
    assert [c["function"]["name"] for c in calls] == ["add", "no_such_name_", "unknown"]
    assert [json.loads(c["function"]["arguments"]) for c in calls] == [
        {"a": 1},
        {"invalid_arguments": "{broken"},
        {},
    ]


def test_numbers_orjson_refuses_are_sent_exactly_and_nan_is_refused():
    big = 2**80
    assert sent(replace(ASK, options={"seed": big}))["body"]["seed"] == big
    odd = replace(ASK, options={"a": big, "b": float("nan")})
    with pytest.raises(Permanent) as caught:
        ask(request=odd)
    assert caught.value.error_code == "MODEL_BAD_REQUEST"
