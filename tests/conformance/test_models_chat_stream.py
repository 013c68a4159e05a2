"""Chat Completions keeps its shape through every trap of the stream, byte by byte."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import openai
import pytest

from harness_common.contracts.model import Usage
from harness_common.core.errors import Limited, Permanent, Transient
from harness_common.core.message import Message, Text, ToolUse, dumps
from harness_worker.models.capabilities import built_in
from harness_worker.models.openai_chat import OpenAIChat
from harness_worker.models.prices import load_prices
from harness_worker.models.sse import MAX_EVENT_BYTES, SseDecoder
from harness_worker.models.tool_args import MAX_DEPTH, parse_arguments
from tests.conformance.model_calls import ASK, DONE, KEY, STOP, ask, fails, model_of, run, stream
from tests.fakes.openai_server import (
    USAGE,
    Answer,
    chunk,
    sse,
    tool_delta,
    usage_chunk,
)


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
    for _ in range(MAX_EVENT_BYTES // 2**20):
        assert decoder.feed(b"x" * 2**20) == []
    with pytest.raises(ValueError, match="larger"):
        decoder.feed(b"x")


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
        [tool_delta(0, "x", "add", "")],
        [tool_delta(0, None, None, '{"a"')],
        [tool_delta(0, None, None, ":1}")],
        [tool_delta(1, "y", "sub", "")],
        [tool_delta(1, None, None, '{"b":2}')],
    ],
    "interleaved": [
        [tool_delta(0, "x", "add", "")],
        [tool_delta(1, "y", "sub", "")],
        [tool_delta(0, None, None, '{"a"')],
        [tool_delta(1, None, None, '{"b":')],
        [tool_delta(0, None, None, ":1}")],
        [tool_delta(1, None, None, "2}")],
    ],
    "both in one delta": [
        [tool_delta(0, "x", "add", '{"a":1}'), tool_delta(1, "y", "sub", '{"b":2}')]
    ],
    "the index repeats": [
        [tool_delta(0, "x", "add", '{"a":1}')],
        [tool_delta(0, "y", "sub", '{"b":2}')],
    ],
    "the index repeats, interleaved by id": [
        [tool_delta(0, "x", "add", "")],
        [tool_delta(0, "y", "sub", "")],
        [tool_delta(0, "x", None, '{"a":1}')],
        [tool_delta(0, "y", None, '{"b":2}')],
    ],
    "no index": [
        [tool_delta(None, "x", "add", '{"a"')],
        [tool_delta(None, None, None, ":1}")],
        [tool_delta(None, "y", "sub", '{"b":2}')],
    ],
    "the id repeats": [
        [tool_delta(0, "x", "add", '{"a":1}')],
        [tool_delta(1, "x", "sub", '{"b":2}')],
    ],
    "id and index repeat": [
        [tool_delta(0, "x", "add", '{"a":1}')],
        [tool_delta(0, "x", "sub", '{"b":2}')],
    ],
    "the id is empty": [
        [tool_delta(0, "", "add", '{"a":1}')],
        [tool_delta(1, "", "sub", '{"b":2}')],
    ],
    "the id is empty and the index repeats": [
        [tool_delta(0, "", "add", '{"a":1}')],
        [tool_delta(0, "", "sub", '{"b":2}')],
    ],
    "the id comes late": [
        [tool_delta(0, None, "add", "")],
        [tool_delta(0, "x", None, '{"a":1}')],
        [tool_delta(1, "y", "sub", '{"b":2}')],
    ],
    "a new id in every delta": [
        [tool_delta(0, "x1", "add", "")],
        [tool_delta(0, "x2", None, '{"a"')],
        [tool_delta(0, "x3", None, ":1}")],
        [tool_delta(1, "y1", "sub", '{"b":2}')],
    ],
    "the name in every delta": [
        [tool_delta(0, "x", "add", "")],
        [tool_delta(0, "x", "add", '{"a"')],
        [tool_delta(0, "x", "add", ":1}")],
        [tool_delta(1, "y", "sub", '{"b":2}')],
    ],
    "arguments as an object": [
        [tool_delta(0, "x", "add", {"a": 1})],
        [tool_delta(1, "y", "sub", {"b": 2})],
    ],
}


@pytest.mark.parametrize("deltas", TOOL_TRAPS.values(), ids=TOOL_TRAPS)
def test_tool_calls_are_put_together(deltas):
    assert uses_of(*deltas) == TWO


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a":1}{"b":2}',
        "[1]",
        "null",
        '"x"',
        '{"a":"\\ud800"}',
    ],
)
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


def test_a_call_that_was_cut_off_before_its_arguments_is_not_one_without():
    for finish, raw in (("length", "{"), ("content_filter", "{"), ("tool_calls", "")):
        begun = chunk({"tool_calls": [tool_delta(0, "call_1", "delete_everything", "")]})
        result = ask(Answer(raw=(sse(begun), sse(chunk({}, finish=finish)), DONE)))
        (use,) = result.message.tool_uses()
        assert use.raw == raw


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
        capabilities = replace(built_in().of("openai/gpt-4.1"), streaming=False)
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
    "bad",
    [
        b"data: nonsense\n\n",
        b"data: 5\n\n",
        b'data: {"choices":[{"delta":{"content":5}}]}\n\n',
        b'data: {"choices": {"a": 1}}\n\n',
        b'data: {"choices":[],"x":NaN}\n\n',
    ],
)
def test_what_is_no_chunk_is_transient(bad):
    assert fails(Transient, Answer(raw=(bad, STOP + DONE))).error_code == "BAD_STREAM"


@pytest.mark.parametrize(
    ("event", "kind", "code"),
    [
        ({"error": {"message": "boom", "type": "server_error"}}, Transient, "MODEL_UNAVAILABLE"),
        ({"error": "boom"}, Transient, "MODEL_UNAVAILABLE"),
        (
            {"error": {"message": "m", "type": "BadRequestError", "code": 400}},
            Permanent,
            "MODEL_BAD_REQUEST",
        ),
        (
            {"object": "error", "message": "m", "type": "InternalServerError", "code": 500},
            Transient,
            "MODEL_UNAVAILABLE",
        ),
        ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, Limited, "LIMITED"),
        ({"error": {"message": "m", "type": "overloaded_error"}}, Limited, "LIMITED"),
        (
            {"error": {"message": "m", "code": "insufficient_quota"}},
            Permanent,
            "INSUFFICIENT_QUOTA",
        ),
        (
            {"error": {"message": "m", "type": "exceed_context_size_error", "code": 400}},
            Permanent,
            "CONTEXT_OVERFLOW",
        ),
    ],
)
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


def test_a_whole_answer_outlives_a_server_that_hangs_after_the_finish():
    request = replace(ASK, first_token_timeout_s=0.2, total_timeout_s=0.3)
    answer = replace(stream(chunk({"content": "x"}), tail=STOP), hold_open_s=30)
    got = ask(answer, request=request)
    assert got.message.text() == "x"
    assert got.usage.estimated


def test_after_the_first_token_only_the_total_timeout_counts():
    request = replace(ASK, first_token_timeout_s=0.4, total_timeout_s=10)
    answer = Answer(pieces=tuple("abcdef"), delay_s=0.6)
    assert ask(answer, request=request).message.text() == "abcdef"


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
        server.default = Answer(hold_open_s=0.05)  # the end of the body comes after [DONE]
        for _ in range(3):
            await model.chat(ASK)
        assert (server.calls, server.connection_count) == (3, 1)

    run(work)


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
            text, usage = "", None
            calls: dict[int, list[str]] = {}
            async for event in await sdk.chat.completions.create(
                model="gpt-4.1",
                messages=[{"role": "user", "content": "Hello?"}],
                stream=True,
                stream_options={"include_usage": True},
            ):
                usage = event.usage or usage
                for choice in event.choices:
                    text += choice.delta.content or ""
                    for call in choice.delta.tool_calls or ():
                        slot = calls.setdefault(call.index, ["", "", ""])
                        slot[0] += call.id or ""
                        assert call.function is not None
                        slot[1] += call.function.name or ""
                        slot[2] += call.function.arguments or ""
        assert usage is not None
        assert ours.message.text() == text
        assert [[u.id, u.name, u.input] for u in ours.message.tool_uses()] == [
            [i, n, json.loads(a)] for i, n, a in calls.values()
        ]
        assert (ours.usage.input_tokens, ours.usage.output_tokens) == (
            usage.prompt_tokens,
            usage.completion_tokens,
        )

    run(work)
