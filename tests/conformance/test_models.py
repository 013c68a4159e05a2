"""Every model provider keeps the contract, and Chat Completions keeps its shape through every trap of the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import orjson
import pytest

from harness_common.contracts.model import ChatRequest, ChatResult, ToolDef, Usage
from harness_common.core.errors import HarnessError, Invalid, Limited, Permanent, Transient
from harness_common.core.message import Message, Text, ToolResult, ToolUse, dumps, user
from harness_common.settings import ModelSettings, Settings
from harness_worker.models.chat_messages import chat_messages
from harness_worker.models.http import shared_client
from harness_worker.models.openai_chat import OpenAIChat, capabilities_of
from harness_worker.models.prices import load_prices
from harness_worker.models.redact import MAX_CHARS, redact
from harness_worker.models.registry import PROVIDERS, ModelRegistry
from harness_worker.models.retry_after import MAX_WAIT_S, retry_after_s
from harness_worker.models.scripted import Scripted
from harness_worker.models.sse import MAX_EVENT_BYTES, SseDecoder
from harness_worker.models.tool_args import MAX_DEPTH, parse_arguments
from tests.fakes.openai_server import (
    USAGE,
    Answer,
    FakeOpenAI,
    chunk,
    refusal,
    sse,
    tool_delta,
    usage_chunk,
)

T = TypeVar("T")
E = TypeVar("E", bound=HarnessError)

DONE = b"data: [DONE]\n\n"
STOP = sse(chunk({}, finish="stop"))
KEY = "sk-verysecretvalue123456"
TOOL = ToolDef(
    "add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}
)
ASK = ChatRequest("openai/gpt-4.1", (user("Hello?"),), tools=(TOOL,))


def run(work: Callable[[FakeOpenAI, httpx.AsyncClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with FakeOpenAI() as server, shared_client() as client:
            return await work(server, client)

    return asyncio.run(main())


def model_of(server: FakeOpenAI, client: httpx.AsyncClient, name: str = "gpt-4.1") -> OpenAIChat:
    return OpenAIChat(client, name, prices=load_prices(), base_url=server.base_url, api_key=KEY)


def ask(*answers: Answer, request: ChatRequest = ASK, shown: list[str] | None = None) -> ChatResult:
    """Ask a fake server that gives `answers`; return the result of the last call."""

    async def on_delta(text: str) -> None:
        if shown is not None:
            shown.append(text)

    async def work(server: FakeOpenAI, client: httpx.AsyncClient) -> ChatResult:
        server.answers.extend(answers)
        result = await model_of(server, client).chat(request, on_delta)
        assert server.calls == 1  # nobody retries
        return result

    return run(work)


def stream(*events: Any, tail: bytes = STOP + DONE) -> Answer:
    return Answer(raw=(*(sse(e) for e in events), tail))


def fails(kind: type[E], answer: Answer, request: ChatRequest = ASK) -> E:
    with pytest.raises(kind) as caught:
        ask(answer, request=request)
    assert KEY not in caught.value.message
    assert caught.value.__cause__ is None
    return caught.value


# --- every provider of the registry -----------------------------------------------------------


def registry_of(server: FakeOpenAI, client: httpx.AsyncClient) -> ModelRegistry:
    return ModelRegistry(Settings(openai_base_url=server.base_url), client)


SCRIPT = {"script": [{"stream": ["Hello", " there", "."]}]}
TOOL_SCRIPT = {"script": [{"text": "I add.", "tools": [{"name": "add", "input": {"a": 1}}]}]}


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_every_provider_answers(provider):
    async def work(server, client):
        model = registry_of(server, client).get(f"{provider}/demo")
        pieces: list[str] = []

        async def on_delta(text: str) -> None:
            pieces.append(text)

        request = replace(ASK, model=f"{provider}/demo", options=SCRIPT)
        result = await model.chat(request, on_delta)
        assert model.provider == provider
        assert result.message == Message("assistant", (Text("Hello there."),))
        assert "".join(pieces) == "Hello there."
        assert result.finish == "stop"
        assert result.usage.input_tokens > 0
        assert result.usage.output_tokens > 0
        assert result.usage.estimated == model.capabilities.scripted
        assert result.first_token_ms is not None
        assert result.provider_request_id
        assert model.count_tokens(request) > model.count_tokens(replace(request, tools=()))
        dumps(result.message)
        await model.aclose()

    run(work)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_every_provider_asks_for_tools(provider):
    async def work(server, client):
        server.default = Answer(pieces=("I add.",), tools=(("add", '{"a": 1}'),))
        model = registry_of(server, client).get(f"{provider}/demo")
        result = await model.chat(replace(ASK, options=TOOL_SCRIPT))
        (use,) = result.message.tool_uses()
        assert (use.name, use.input, use.raw) == ("add", {"a": 1}, None)
        assert use.id
        assert result.message.text() == "I add."
        assert result.finish == "tool_calls"

    run(work)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
@pytest.mark.parametrize(
    ("script", "answer", "kind"),
    [
        (
            {"error": "limited", "retry_after_s": 3},
            refusal(429, "slow", headers={"Retry-After": "3"}),
            Limited,
        ),
        ({"error": "transient"}, refusal(500, "oh"), Transient),
        ({"error": "permanent"}, refusal(400, "no"), Permanent),
    ],
)
def test_every_provider_classifies(provider, script, answer, kind):
    async def work(server, client):
        server.default = answer
        model = registry_of(server, client).get(f"{provider}/demo")
        with pytest.raises(HarnessError) as caught:
            await model.chat(replace(ASK, options={"script": [script]}))
        assert type(caught.value) is kind
        if isinstance(caught.value, Limited):
            assert caught.value.retry_after_s == 3
            assert caught.value.scope == f"{provider}:demo:none"

    run(work)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_every_provider_times_out_at_the_first_token(provider):
    async def work(server, client):
        server.default = Answer(first_token_delay_s=30)
        model = registry_of(server, client).get(f"{provider}/demo")
        request = replace(
            ASK, options={"script": [{"text": "x", "delay_s": 30}]}, first_token_timeout_s=0.05
        )
        with pytest.raises(Transient) as caught:
            await model.chat(request)
        assert caught.value.error_code == "FIRST_TOKEN_TIMEOUT"

    run(work)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_every_provider_can_be_cancelled(provider):
    async def work(server, client):
        server.default = Answer(delay_s=60)
        model = registry_of(server, client).get(f"{provider}/demo")
        begun = asyncio.Event()

        async def on_delta(_: str) -> None:
            begun.set()

        options = {"script": [{"text": "x", "delay_s": 60}]}
        server.default = Answer(
            pieces=("a", "b"), raw=(sse(chunk({"content": "a"})),), hold_open_s=60
        )
        call = asyncio.create_task(model.chat(replace(ASK, options=options), on_delta))
        if provider == "scripted":
            await asyncio.sleep(0)
        else:
            await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        if provider != "scripted":  # the server saw that we left
            await asyncio.wait_for(server.idle.wait(), 5)
            assert server.dropped == 1

    run(work)


# --- the stream -------------------------------------------------------------------------------


def test_an_answer_with_usage_cost_and_ids():
    shown: list[str] = []
    result = ask(Answer(), shown=shown)
    assert result.message.text() == "Hello there." == "".join(shown)
    assert result.usage == Usage(20, 5, 8)
    assert result.model == "gpt-4.1"
    assert result.provider_request_id == "req_1"
    assert result.cost_usd == pytest.approx((12 * 2.0 + 8 * 0.5 + 5 * 8.0) / 1e6)
    assert result.first_token_ms is not None
    assert result.first_token_ms > 0


def test_bytes_may_be_split_anywhere():
    text = "Zwölf ☃ 漢字 \r\n data: x"
    raw = sse(chunk({"content": text})) + STOP + sse(usage_chunk()) + DONE
    raw = raw.replace(b'"\\u2603', '"☃'.encode())
    result = ask(Answer(raw=tuple(raw[i : i + 1] for i in range(len(raw)))))
    assert result.message.text() == text
    assert result.usage == Usage(20, 5, 8)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_sse_of_every_line_end(line_end, size):
    text = (
        b"\xef\xbb\xbf: comment\ndata: one\n\nevent: error\ndata:two\ndata: three\nid: 1\n\n\n"
        b"data: last\n"
    ).replace(b"\n", line_end)
    decoder = SseDecoder()
    events = [e for i in range(0, len(text), size) for e in decoder.feed(text[i : i + size])]
    assert [*events, *decoder.flush()] == [(b"", b"one"), (b"error", b"two\nthree"), (b"", b"last")]


def test_an_endless_event_is_refused():
    decoder = SseDecoder()
    with pytest.raises(ValueError, match="larger"):
        for _ in range(MAX_EVENT_BYTES // 2**20 + 1):
            decoder.feed(b"x" * 2**20)


@pytest.mark.parametrize("content", [None, ""])
def test_empty_content_beside_tool_calls(content):
    delta = {
        "role": "assistant",
        "content": content,
        "tool_calls": [tool_delta(0, "c", "add", "{}")],
    }
    result = ask(stream(chunk(delta)))
    assert result.message.content == (ToolUse("c", "add", {}),)


def test_tool_calls_count_although_the_finish_is_stop():
    result = ask(stream(chunk({"tool_calls": [tool_delta(0, "c", "add", '{"a":1}')]})))
    assert result.finish == "tool_calls"


def uses_of(*deltas: Any) -> list[tuple[str, Any]]:
    """Decode deltas (each a list of tool-call deltas); ids must be unique and not empty."""
    result = ask(stream(*(chunk({"tool_calls": d}) for d in deltas)))
    uses = result.message.tool_uses()
    assert len({u.id for u in uses}) == len(uses)
    assert all(u.id for u in uses)
    return [(u.name, u.input if u.raw is None else u.raw) for u in uses]


TWO = [("add", {"a": 1}), ("sub", {"b": 2})]
TOOL_TRAPS = {
    "one after the other": [
        [tool_delta(0, "x", "add", "")], [tool_delta(0, None, None, '{"a"')], [tool_delta(0, None, None, ":1}")],
        [tool_delta(1, "y", "sub", "")], [tool_delta(1, None, None, '{"b":2}')],
    ],
    "interleaved": [
        [tool_delta(0, "x", "add", "")], [tool_delta(1, "y", "sub", "")], [tool_delta(0, None, None, '{"a"')],
        [tool_delta(1, None, None, '{"b":')], [tool_delta(0, None, None, ":1}")], [tool_delta(1, None, None, "2}")],
    ],
    "both in one delta": [[tool_delta(0, "x", "add", '{"a":1}'), tool_delta(1, "y", "sub", '{"b":2}')]],
    "the index repeats": [[tool_delta(0, "x", "add", '{"a":1}')], [tool_delta(0, "y", "sub", '{"b":2}')]],
    "the index repeats, interleaved by id": [
        [tool_delta(0, "x", "add", "")], [tool_delta(0, "y", "sub", "")], [tool_delta(0, "x", None, '{"a":1}')],
        [tool_delta(0, "y", None, '{"b":2}')],
    ],
    "no index": [[tool_delta(None, "x", "add", '{"a"')], [tool_delta(None, None, None, ":1}")],
                 [tool_delta(None, "y", "sub", '{"b":2}')]],
    "the id repeats": [[tool_delta(0, "x", "add", '{"a":1}')], [tool_delta(1, "x", "sub", '{"b":2}')]],
    "id and index repeat": [[tool_delta(0, "x", "add", '{"a":1}')], [tool_delta(0, "x", "sub", '{"b":2}')]],
    "the id is empty": [[tool_delta(0, "", "add", '{"a":1}')], [tool_delta(1, "", "sub", '{"b":2}')]],
    "the id is empty and the index repeats": [
        [tool_delta(0, "", "add", '{"a":1}')], [tool_delta(0, "", "sub", '{"b":2}')],
    ],
    "the id comes late": [
        [tool_delta(0, None, "add", "")], [tool_delta(0, "x", None, '{"a":1}')], [tool_delta(1, "y", "sub", '{"b":2}')],
    ],
    "a new id in every delta": [
        [tool_delta(0, "x1", "add", "")], [tool_delta(0, "x2", None, '{"a"')], [tool_delta(0, "x3", None, ":1}")],
        [tool_delta(1, "y1", "sub", '{"b":2}')],
    ],
    "the name in every delta": [
        [tool_delta(0, "x", "add", "")], [tool_delta(0, "x", "add", '{"a"')], [tool_delta(0, "x", "add", ":1}")],
        [tool_delta(1, "y", "sub", '{"b":2}')],
    ],
    "arguments as an object": [[tool_delta(0, "x", "add", {"a": 1})], [tool_delta(1, "y", "sub", {"b": 2})]],
}  # fmt: skip


@pytest.mark.parametrize("deltas", TOOL_TRAPS.values(), ids=TOOL_TRAPS)
def test_tool_calls_are_put_together(deltas):
    assert uses_of(*deltas) == TWO


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": NaN}', '{"a": 1e999}', '{"a":1}{"b":2}', "[1]", "null", '"x"', '{"a":"\\ud800"}']
)  # fmt: skip
def test_arguments_that_are_no_object_are_kept_as_they_came(text):
    result = ask(stream(chunk({"tool_calls": [tool_delta(0, "c", "add", text)]})))
    assert result.message.tool_uses() == (ToolUse("c", "add", {}, text),)


def test_arguments_are_bounded_and_exact():
    assert parse_arguments('{"a":' * 5000 + "1" + "}" * 5000)[0] == {}
    deep = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert parse_arguments(deep)[1] is None
    assert parse_arguments('{"a":' + deep + "}")[1] is not None
    assert parse_arguments('{"a":"' + "[{" * 500 + '"}')[1] is None
    assert parse_arguments('{"n":123456789012345678901234567890}')[0] == {
        "n": 123456789012345678901234567890
    }


def test_nul_is_taken_out_of_text_and_arguments():
    arguments = '{"a\\u0000":"x\\u0000y","b":"keep \\\\u0000"}'
    delta = {"content": "a\x00b", "tool_calls": [tool_delta(0, "c\x00", "ad\x00d", arguments)]}
    result = ask(stream(chunk(delta)))
    assert result.message.text() == "ab"
    assert result.message.tool_uses() == (ToolUse("c", "add", {"a": "xy", "b": "keep \\u0000"}),)
    assert "\\u0000" not in dumps(result.message).replace("\\\\u0000", "")


def test_refusal_is_an_answer_of_its_own():
    shown: list[str] = []
    result = ask(stream(chunk({"refusal": "I can"}), chunk({"refusal": "not."})), shown=shown)
    assert (result.finish, result.message.text()) == ("refusal", "I cannot.")
    assert "".join(shown) == "I cannot."


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_not_kept(field):
    shown: list[str] = []
    result = ask(stream(chunk({field: "hmm"}), chunk({"content": "42"})), shown=shown)
    assert result.message == Message("assistant", (Text("42"),))
    assert shown == ["42"]


@pytest.mark.parametrize(
    ("finish", "expected"), [("length", "length"), ("content_filter", "refusal"), ("stop", "stop")]
)
def test_finish(finish, expected):
    assert ask(Answer(finish=finish)).finish == expected


def test_usage_is_estimated_when_the_server_reports_none():
    usage = ask(Answer(usage=False)).usage
    assert usage.estimated
    assert usage.input_tokens > 5
    assert usage.output_tokens == 3


def test_usage_with_every_chunk_counts_once():
    events = [
        {**chunk({"content": "a"}), "usage": {**USAGE, "completion_tokens": n}} for n in (1, 2)
    ]
    assert ask(stream(*events)).usage.output_tokens == 2


def test_an_answer_in_one_piece():
    async def work(server, client):
        capabilities = replace(capabilities_of("gpt-4.1"), streaming=False)
        model = OpenAIChat(
            client, "m", prices=load_prices(), base_url=server.base_url, capabilities=capabilities
        )
        server.answers.append(
            Answer(pieces=("Hi",), tools=(("add", '{"a":1}'), ("sub", '{"b":2}')))
        )
        result = await model.chat(ASK)
        assert result.message.text() == "Hi"
        assert [(u.name, u.input) for u in result.message.tool_uses()] == TWO
        assert result.usage == Usage(20, 5, 8)
        assert result.cost_usd is None
        assert "stream" not in server.requests[0]["body"]

    run(work)


# --- streams that break -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        Answer(raw=(sse(chunk({"content": "Hel"})),)),
        Answer(raw=(sse(chunk({"content": "Hel"})), b'data: {"choices":[{"del')),
        Answer(raw=(b": ping\n\n",)),
        Answer(pieces=("a", "b", "c"), cut_after=2, delay_s=0.01),
    ],
    ids=["clean end", "half an event", "nothing", "reset"],
)
def test_a_cut_stream_is_transient(answer):
    assert fails(Transient, answer).error_code == "STREAM_CUT"


@pytest.mark.parametrize("tail", [DONE, STOP, b"data: [DONE]", b"data: [DONE]\n"])
def test_either_sign_of_the_end_is_enough(tail):
    assert ask(stream(chunk({"content": "x"}), tail=tail)).message.text() == "x"


@pytest.mark.parametrize(
    "bad", [b"data: nonsense\n\n", b"data: 5\n\n", b'data: {"choices":[{"delta":{"content":5}}]}\n\n',
            b'data: {"choices": {"a": 1}}\n\n', b'data: {"choices":[],"x":NaN}\n\n'],
)  # fmt: skip
def test_what_is_no_chunk_is_transient(bad):
    assert fails(Transient, Answer(raw=(bad, STOP + DONE))).error_code == "BAD_STREAM"


@pytest.mark.parametrize(
    ("event", "kind", "code"),
    [
        ({"error": {"message": "boom", "type": "server_error"}}, Transient, "MODEL_UNAVAILABLE"),
        ({"error": "boom"}, Transient, "MODEL_UNAVAILABLE"),
        ({"error": {"message": "m", "type": "BadRequestError", "code": 400}}, Permanent, "MODEL_BAD_REQUEST"),
        ({"object": "error", "message": "m", "type": "InternalServerError", "code": 500}, Transient,
         "MODEL_UNAVAILABLE"),
        ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, Limited, "LIMITED"),
        ({"error": {"message": "m", "type": "overloaded_error"}}, Limited, "LIMITED"),
        ({"error": {"message": "m", "code": "insufficient_quota"}}, Permanent, "INSUFFICIENT_QUOTA"),
        ({"error": {"message": "m", "type": "exceed_context_size_error", "code": 400}}, Permanent,
         "CONTEXT_OVERFLOW"),
    ],
)  # fmt: skip
def test_an_error_event_in_the_stream(event, kind, code):
    error = fails(kind, Answer(pieces=("a", "b"), error_after=(1, event)))
    assert error.error_code == code


def test_total_timeout_after_the_first_token():
    request = replace(ASK, first_token_timeout_s=5, total_timeout_s=0.2)
    answer = Answer(raw=(sse(chunk({"content": "a"})),), hold_open_s=30)
    assert fails(Transient, answer, request).error_code == "MODEL_TIMEOUT"


def test_first_token_timeout_covers_the_wait_for_headers_and_ends_with_reasoning():
    request = replace(ASK, first_token_timeout_s=0.1, total_timeout_s=5)
    error = fails(Transient, Answer(header_delay_s=30), request)
    assert error.error_code == "FIRST_TOKEN_TIMEOUT"
    role_only = Answer(raw=(sse(chunk({"role": "assistant", "content": ""})),), hold_open_s=30)
    assert fails(Transient, role_only, request).error_code == "FIRST_TOKEN_TIMEOUT"
    thinking = Answer(raw=(sse(chunk({"reasoning": "a"})),), hold_open_s=30)
    request = replace(request, total_timeout_s=0.3)
    assert fails(Transient, thinking, request).error_code == "MODEL_TIMEOUT"


def test_refused_and_closed_connections_are_transient():
    async def work(server, client):
        model = model_of(server, client)
        await server.stop()
        with pytest.raises(Transient) as caught:
            await model.chat(ASK)
        assert caught.value.error_code == "MODEL_CONNECTION"

        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        rude = await asyncio.start_server(hang_up, "127.0.0.1", 0)
        server.port = rude.sockets[0].getsockname()[1]
        with pytest.raises(Transient) as caught:
            await model_of(server, client).chat(ASK)
        assert caught.value.error_code == "MODEL_CONNECTION"
        rude.close()

    run(work)


def test_a_server_that_stays_after_done_does_not_hold_us():
    answer = Answer(hold_open_s=30)
    assert ask(answer).message.text() == "Hello there."


def test_connections_are_used_again():
    async def work(server, client):
        model = model_of(server, client)
        for _ in range(5):
            await model.chat(ASK)
        assert (server.calls, server.connection_count) == (5, 1)

    run(work)


# --- refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"retry-after-ms": "1500", "Retry-After": "2"}, 1.5),
        ({"Retry-After": "Sun, 29 Nov 2026 10:00:30 GMT", "Date": "Sun, 29 Nov 2026 10:00:00 GMT"}, 30.0),
        ({}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "6m0.5s"}, 360.5),
    ],
)  # fmt: skip
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
        (refusal(429, "You exceeded your quota", code="insufficient_quota"), Permanent, "INSUFFICIENT_QUOTA"),
        (refusal(429, "quota", kind="insufficient_quota"), Permanent, "INSUFFICIENT_QUOTA"),
        (refusal(402, "Insufficient Balance"), Permanent, "INSUFFICIENT_QUOTA"),
        (refusal(429, "Request too large for gpt-4.1", kind="tokens"), Permanent, "REQUEST_TOO_LARGE"),
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
        (refusal(400, "Your input is long", code="context_length_exceeded"), Permanent, "CONTEXT_OVERFLOW"),
        (refusal(400, "the request exceeds the available context size", code=400,
                 kind="exceed_context_size_error"), Permanent, "CONTEXT_OVERFLOW"),
        (Answer(status=400, body={"object": "error", "type": "BadRequestError", "param": None, "code": 400,
                "message": "This model's maximum context length is 4096 tokens. However, you requested 5000"}),
         Permanent, "CONTEXT_OVERFLOW"),
        (refusal(400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096",
                 kind="BadRequestError", code=400), Permanent, "CONTEXT_OVERFLOW"),
        (Answer(body={"error": {"message": "boom", "code": 500}}), Transient, "MODEL_UNAVAILABLE"),
        (Answer(body={"ok": True}), Transient, "BAD_STREAM"),
    ],
)  # fmt: skip
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


# --- what is sent -----------------------------------------------------------------------------


def sent(request: ChatRequest, name: str = "gpt-4.1") -> Any:
    async def work(server, client):
        await model_of(server, client, name).chat(request)
        return server.requests[0]

    return run(work)


def test_the_request():
    request = replace(
        ASK, system="Be brief.", temperature=0.5, max_tokens=77,
        options={"seed": 1, "script": [], "attempt": 2, "stop": None, "n": 3, "stream": False},
    )  # fmt: skip
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


# --- the official SDK reads the same ----------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        Answer(),
        Answer(pieces=("Zwölf ", "☃"), tools=(("add", '{"a": 1}'), ("sub", '{"b": 2}'))),
        stream(*(chunk({"tool_calls": d}) for d in TOOL_TRAPS["interleaved"]), usage_chunk()),
        stream(*(chunk({"tool_calls": d}) for d in TOOL_TRAPS["both in one delta"]), usage_chunk()),
    ],
)
def test_the_official_sdk_decodes_the_same(answer):
    async def work(server, client):
        server.default = answer
        ours = await model_of(server, client).chat(ASK)
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key=KEY, max_retries=0) as sdk:
            text, calls, usage = "", {}, None
            async for event in await sdk.chat.completions.create(
                model="gpt-4.1", messages=[{"role": "user", "content": "Hello?"}], stream=True,
                stream_options={"include_usage": True},
            ):  # fmt: skip
                usage = event.usage or usage
                for choice in event.choices:
                    text += choice.delta.content or ""
                    for call in choice.delta.tool_calls or ():
                        slot = calls.setdefault(call.index, ["", "", ""])
                        slot[0] += call.id or ""
                        slot[1] += call.function.name or ""
                        slot[2] += call.function.arguments or ""
        assert ours.message.text() == text
        assert [[u.id, u.name, u.input] for u in ours.message.tool_uses()] == [
            [i, n, json.loads(a)] for i, n, a in calls.values()
        ]
        assert (ours.usage.input_tokens, ours.usage.output_tokens) == (
            usage.prompt_tokens, usage.completion_tokens,
        )  # fmt: skip

    run(work)


# --- the scripted model -----------------------------------------------------------------------


def play(script: Any, *conversation: Message, attempt: int | None = None) -> ChatResult:
    options = {"script": script} | ({} if attempt is None else {"attempt": attempt})
    request = ChatRequest("scripted/demo", (user("Go."), *conversation), options=options)
    return asyncio.run(Scripted("demo").chat(request))


def said(text: str = "ok", *blocks: Any) -> Message:
    return Message("assistant", (Text(text), *blocks))


def result(text: str, role: Any = "tool") -> Message:
    return Message(role, (ToolResult("c", text),))


def test_the_scripted_answer_follows_the_conversation():
    script = [{"text": "one"}, {"text": "two", "continue": True}]
    first = play(script)
    assert (first.message.text(), first.finish, first.model) == ("one", "stop", "scripted/demo")
    assert first.cost_usd == 0
    assert first == play(script)
    second = play(script, said(), result("r", role="user"))
    assert (second.message.text(), second.finish) == ("two", "pause")
    assert play(script, said(), said(), user("again")).message.text() == "one"
    with pytest.raises(Permanent) as caught:
        play(script, said(), said())
    assert caught.value.error_code == "SCRIPT_EXHAUSTED"


def test_the_script_refers_to_results():
    a, b = "art_" + "a" * 32, "art_" + "b" * 32
    before = (said(), result(f"see {a} {{{{result:2}}}}"), said(), result(f"{a} and {b}"))
    script = [
        {}, {},
        {
            "text": "{{result:1}} | {{last_result}}",
            "tools": [{"name": "t", "input": {"x": ["{{artifact:2}}", 1], "y": {"z": "{{artifact:1}}"}}}],
        },
    ]  # fmt: skip
    got = play(script, *before)
    assert got.message.text() == f"see {a} {{{{result:2}}}} | {a} and {b}"
    assert got.message.tool_uses() == (ToolUse("call_3_1", "t", {"x": [b, 1], "y": {"z": a}}),)
    for reference in ("{{artifact:1}}", "{{last_result}}", "{{result:0}}"):
        with pytest.raises(Permanent) as caught:
            play([{"text": reference}])
        assert caught.value.error_code == "SCRIPT_REFERENCE"


def test_scripted_errors_end_after_their_times():
    script = [{"error": "transient", "times": 2, "text": "at last"}]
    for attempt in (None, 1, 2):
        with pytest.raises(Transient):
            play(script, attempt=attempt)
    assert play(script, attempt=3).message.text() == "at last"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (None, "SCRIPT_MISSING"),
        ([], "SCRIPT_MISSING"),
        ([{"txt": "x"}], "SCRIPT_INVALID"),
        (["x"], "SCRIPT_INVALID"),
        ([{"error": "odd"}], "SCRIPT_INVALID"),
    ],
)
def test_a_wrong_script_says_where(script, code):
    with pytest.raises(Permanent) as caught:
        play(script)
    assert caught.value.error_code == code


# --- registry and prices ----------------------------------------------------------------------


def test_the_registry_keeps_and_names():
    async def work(server, client):
        models = registry_of(server, client)
        assert models.get("openai/meta/llama-3") is models.get("openai/meta/llama-3")
        assert models.get("scripted/demo").capabilities.scripted
        for name in ("gpt-5", "openai/", "/x", ""):
            with pytest.raises(Invalid, match="provider/model"):
                models.get(name)
        with pytest.raises(Invalid) as caught:
            models.get("nobody/x")
        assert caught.value.detail["known"] == sorted(PROVIDERS)
        await models.aclose()

    run(work)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "HARNESS_OPENAI_API_KEY"),
        ({"openai_api_key": " "}, "HARNESS_OPENAI_API_KEY"),
        ({"openai_base_url": "localhost:8000/v1"}, "HARNESS_OPENAI_BASE_URL"),
    ],
)
def test_what_is_not_configured_names_its_variable(settings, words, monkeypatch):
    for name in ("HARNESS_OPENAI_API_KEY", "HARNESS_OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    async def work(_, client):
        with pytest.raises(Permanent, match=words) as caught:
            ModelRegistry(Settings(**settings), client).get("openai/gpt-5-mini")
        assert caught.value.error_code == "MODEL_NOT_CONFIGURED"

    run(work)


def test_prices(tmp_path: Path):
    prices = load_prices()
    usage = Usage(1_000_000, 1_000_000, 400_000)
    assert prices.cost_usd("openai/gpt-5-mini", usage) == pytest.approx(
        0.6 * 0.25 + 0.4 * 0.025 + 2
    )
    assert prices.cost_usd("openai/gpt-5-mini-2025-08-07", usage) is not None
    assert prices.cost_usd("openai/unknown", usage) is None
    assert prices.cost_usd("scripted/demo", usage) == 0
    own = tmp_path / "prices.json"
    entry = {"input": 1, "output": 1, "source": "us", "as_of": "2026-11-29"}
    own.write_text(json.dumps({"models": {"openai/unknown": entry, "openai/gpt-5-mini": entry}}))
    mine = ModelRegistry(Settings(model=ModelSettings(prices=own)), httpx.AsyncClient()).prices
    assert mine.cost_usd("openai/unknown", usage) == 2
    assert mine.cost_usd("openai/gpt-5-mini", usage) == 2
    assert mine.price("openai/gpt-4.1") == prices.price("openai/gpt-4.1")
    own.write_text('{"models": {"a/b": {"input": -1}}}')
    with pytest.raises(Invalid, match="price file"):
        load_prices(own)
