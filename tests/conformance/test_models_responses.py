"""The Responses API keeps its shape through every trap: input items, events, statuses, errors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import openai
import pytest

from harness_common.contracts.model import ChatRequest, ChatResult, Usage
from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.message import Message, Text, ToolResult, ToolUse, dumps, loads, user
from harness_worker.models.openai_responses import OpenAIResponses
from harness_worker.models.prices import load_prices
from tests.conformance.model_calls import ASK, KEY, TOOL, run
from tests.fakes.openai_server import Answer, refusal, sse
from tests.fakes.responses_form import (
    call_item,
    created,
    ended,
    event,
    reasoning_item,
    refusal_item,
    response,
    streamed_call,
    streamed_text,
    text_item,
)

REASONER = "gpt-5-mini"


def model_of(server, client, name: str = REASONER) -> OpenAIResponses:
    return OpenAIResponses(
        client, name, prices=load_prices(), base_url=server.base_url, api_key=KEY
    )


def ask(
    *raw: bytes, request: ChatRequest = ASK, shown: list[str] | None = None, name: str = REASONER
) -> ChatResult:
    return asked(Answer(raw=raw), request=request, shown=shown, name=name)[0]


def asked(
    *answers: Answer,
    request: ChatRequest = ASK,
    shown: list[str] | None = None,
    name: str = REASONER,
) -> tuple[ChatResult, list[Any]]:
    async def on_delta(text: str) -> None:
        if shown is not None:
            shown.append(text)

    async def work(server, client):
        server.answers.extend(answers)
        result = await model_of(server, client, name).chat(request, on_delta)
        return result, server.requests

    found: tuple[ChatResult, list[Any]] = run(work)
    return found


def fails(kind: type[HarnessError], *answers: Answer, request: ChatRequest = ASK) -> HarnessError:
    with pytest.raises(kind) as caught:
        asked(*answers, request=request)
    assert KEY not in caught.value.message
    return caught.value


def sent(request: ChatRequest, name: str = REASONER) -> Any:
    return asked(Answer(), request=request, name=name)[1][0]["body"]


def spoke(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": text}


def said(*output: Any, **more: Any) -> tuple[bytes, ...]:
    return (created(), ended(output, **more))


def test_an_answer_with_usage_cost_and_ids():
    shown: list[str] = []
    result, _ = asked(Answer(), shown=shown)
    assert result.message == Message("assistant", (Text("Hello there."),))
    assert "".join(shown) == "Hello there."
    assert result.usage == Usage(20, 5, 8)
    assert result.provider_request_id == "req_1"
    assert result.model == REASONER
    # at the prices of the same model of `openai`
    assert result.cost_usd == pytest.approx((12 * 0.25 + 8 * 0.025 + 5 * 2.0) / 1e6)
    assert result.finish == "stop"


def test_nothing_is_kept_at_the_server():
    options = {
        "store": True,
        "previous_response_id": "resp_0",
        "conversation": "conv_1",
        "background": True,
        "keep_reasoning": True,
        "seed": 1,
        "script": [],
        "attempt": 2,
    }
    request = replace(ASK, system="Be brief.", max_tokens=77, temperature=0.5, options=options)
    assert sent(request) == {
        "model": REASONER,
        "input": [spoke("user", "Hello?")],
        "instructions": "Be brief.",
        "store": False,
        "max_output_tokens": 77,
        "tools": [
            {
                "type": "function",
                "name": "add",
                "description": "Add two numbers.",
                "parameters": TOOL.input_schema,
                "strict": False,
            }
        ],
        "include": ["reasoning.encrypted_content"],
        "seed": 1,
        "stream": True,
    }


def test_what_a_model_accepts_decides():
    request = replace(ASK, temperature=0.5, options={"top_p": 1, "include": ["x"]})
    assert {"temperature", "top_p"}.isdisjoint(sent(request))
    assert sent(request)["include"] == ["x", "reasoning.encrypted_content"]
    plain = sent(request, "gpt-4.1")
    assert (plain["temperature"], plain["top_p"], plain["include"]) == (0.5, 1, ["x"])


def test_the_server_is_held_to_the_schema_of_an_answer():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    request = replace(ASK, tools=(), answer_schema=schema, options={"text": {"verbosity": "low"}})
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    assert sent(request)["text"] == {"verbosity": "low", "format": form}
    for own in (
        {"response_format": {"type": "json_object"}},
        {"text": {"format": {"type": "json_object"}}},
    ):
        assert sent(replace(request, options=own))["text"] == {"format": {"type": "json_object"}}


def test_options_of_chat_completions_are_translated():
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    options = {
        "response_format": {"type": "json_schema", "json_schema": schema},
        "reasoning_effort": "low",
        "text": {"verbosity": "low"},
        "reasoning": {"summary": "auto"},
    }
    body = sent(replace(ASK, options=options))
    assert body["text"] == {"verbosity": "low", "format": {"type": "json_schema", **schema}}
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    body = sent(replace(ASK, options={"response_format": {"type": "json_object"}}))
    assert body["text"] == {"format": {"type": "json_object"}}


@pytest.mark.parametrize("choice", ["auto", "required", "none", "add"])
def test_a_tool_is_forced(choice):
    wanted = {"type": "function", "name": "add"} if choice == "add" else choice
    assert sent(replace(ASK, tool_choice=choice))["tool_choice"] == wanted
    assert "tool_choice" not in sent(replace(ASK, tool_choice=choice, tools=()))


def test_every_call_goes_back_with_its_output():
    uses = (ToolUse("c1", "add", {"a": 1}), ToolUse("c1", "no such!", {}, "{broken"))
    conversation = (
        user("Go."),
        Message("assistant", (Text("I go."), *uses)),
        Message("tool", (ToolResult("c1", "2"), ToolResult("gone", "orphan"))),
        user("And hurry."),
        Message("assistant", (ToolUse("x" * 90, "add", {}),)),
        Message("system", (Text("Mind the gap."),)),
    )
    items = sent(ChatRequest("m", conversation))["input"]
    second, third = items[3]["call_id"], items[8]["call_id"]
    assert items == [
        spoke("user", "Go."),
        spoke("assistant", "I go."),
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1}'},
        {
            "type": "function_call",
            "call_id": second,
            "name": "no_such_",
            "arguments": '{"invalid_arguments":"{broken"}',
        },
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {
            "type": "function_call_output",
            "call_id": second,
            "output": "Error: this call has no result; it was not carried out or was interrupted.",
        },
        spoke("user", "Result of an earlier tool call: orphan"),
        spoke("user", "And hurry."),
        {"type": "function_call", "call_id": third, "name": "add", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": third,
            "output": "Error: this call has no result; it was not carried out or was interrupted.",
        },
        spoke("system", "Mind the gap."),
    ]
    assert len({"c1", second, third}) == 3
    assert len(third) <= 40
    assert items == sent(ChatRequest("m", conversation))["input"]  # the same ids every time


THOUGHT = reasoning_item(1, "gAAA+/=", future={"b": 1, "a": [None, "ü"]})
SECOND = reasoning_item(2, "gBBB")


def reasoned() -> ChatResult:
    output = (THOUGHT, text_item("I add.", phase="commentary"), SECOND, call_item(1, "add", "{}"))
    return ask(*said(*output))


def test_reasoning_is_sent_back_as_it_came():
    answer = loads(dumps(reasoned().message))  # through the database
    items = sent(ChatRequest("m", (user("Go."), answer)))["input"]
    assert [json.dumps(i) for i in (items[1], items[3])] == [
        json.dumps(THOUGHT),
        json.dumps(SECOND),
    ]
    assert items[2] == {**spoke("assistant", "I add."), "phase": "commentary"}
    assert items[4]["type"] == "function_call"


@pytest.mark.parametrize("change", ["another model", "another provider", "changed content"])
def test_reasoning_that_does_not_fit_is_left_out_whole(change):
    answer, name = reasoned().message, REASONER
    if change == "another model":
        name = "gpt-5.4"
    elif change == "another provider":
        answer = replace(answer, extra={**answer.extra, "provider": "other"})
    else:
        answer = replace(answer, content=answer.content[1:])
    items = sent(ChatRequest("m", (user("Go."), answer)), name)["input"]
    assert not [i for i in items if i.get("type") == "reasoning" or "phase" in i]


@pytest.mark.parametrize("bad", [[[9, {}]], [["0", {}]], [1], "x", [[-1, {}]], None])
def test_reasoning_that_was_spoilt_is_left_out(bad):
    answer = reasoned().message
    answer = replace(answer, extra={**answer.extra, "reasoning": bad})
    items = sent(ChatRequest("m", (user("Go."), answer)))["input"]
    assert not [i for i in items if i.get("type") == "reasoning"]


READABLE = reasoning_item(1, "gAAA", summary=[{"type": "summary_text", "text": "hidden words"}])


@pytest.mark.parametrize(
    "item",
    [
        READABLE,
        reasoning_item(1, "gAAA", content=[{"type": "reasoning_text", "text": "hidden words"}]),
        reasoning_item(1, None),
    ],
)
def test_reasoning_that_can_be_read_is_not_kept(item):
    shown: list[str] = []
    thinking = event("response.reasoning_summary_text.delta", output_index=0, delta="hidden words")
    raw = (created(), thinking, ended((item, text_item("42"))))
    result = ask(*raw, shown=shown)
    assert result.message.extra is None
    assert "hidden" not in dumps(result.message)
    assert shown == ["42"]


def test_reasoning_is_kept_when_asked_for():
    request = replace(ASK, options={"keep_reasoning": True})
    answer = ask(*said(READABLE, text_item("42")), request=request).message
    assert answer.extra["reasoning"] == [[0, READABLE]]


def test_reasoning_that_nothing_follows_is_not_kept():
    assert ask(*said(text_item("42"), THOUGHT)).message.extra is None


def test_reasoning_that_the_server_cannot_read_is_dropped_and_asked_without():
    answer = reasoned().message
    request = ChatRequest("m", (user("Go."), answer))
    bad = refusal(400, "could not be verified", code="invalid_encrypted_content")
    result, requests = asked(bad, Answer(), request=request)
    assert result.message.text() == "Hello there."
    first, second = ([i.get("type") for i in r["body"]["input"]] for r in requests)
    assert "reasoning" in first
    assert second == [t for t in first if t != "reasoning"]
    assert fails(Permanent, bad, bad, request=request).error_code == "REASONING_REFUSED"
    assert fails(Permanent, bad).error_code == "REASONING_REFUSED"  # none was sent: asked once


def test_calls_are_put_together_from_what_was_streamed():
    first, second = call_item(1, "add", '{"a": 1}'), call_item(2, "sub", '{"b": 2}')
    one, two = streamed_call(0, first), streamed_call(1, second)
    mixed = [part for pair in zip(one[:-2], two[:-2], strict=False) for part in pair]
    for raw in ([*one, *two], mixed):
        for last in (ended((first, second)), ended(()), event("response.completed", response={})):
            result = ask(created(), *raw, last)
            assert [(u.id, u.name, u.input) for u in result.message.tool_uses()] == [
                ("call_1", "add", {"a": 1}),
                ("call_2", "sub", {"b": 2}),
            ]
            assert result.finish == "tool_calls"


def test_items_are_told_apart_when_indexes_or_ids_are_wrong():
    first, second = call_item(1, "add", '{"a": 1}'), call_item(2, "sub", '{"b": 2}')
    same_index = [*streamed_call(0, first)[:-1], *streamed_call(0, second)[:-1]]
    mixed = same_index[:1] + same_index[4:5] + same_index[1:4] + same_index[5:]
    result = ask(created(), *mixed, ended(()))
    assert [u.input for u in result.message.tool_uses()] == [{"a": 1}, {"b": 2}]
    changing = [
        part.replace(b'"fc_1"', f'"fc_{n}x"'.encode())
        for n, part in enumerate(streamed_call(0, first)[:-2])
    ]
    result = ask(created(), *changing, *streamed_call(1, second), ended(()))
    assert [u.input for u in result.message.tool_uses()] == [{"a": 1}, {"b": 2}]


def test_ids_of_calls_are_made_unique():
    calls = [call_item(1, "add", "{}", i) for i in ("x", "x", "")]
    uses = ask(*said(*calls)).message.tool_uses()
    assert len({u.id for u in uses}) == 3
    assert uses[0].id == "x"
    assert all(u.id for u in uses)


@pytest.mark.parametrize("text", ["", "{", '{"a":1}{"b":2}', "[1]"])
def test_arguments_that_are_no_object_are_kept_as_they_came(text):
    result = ask(created(), *streamed_call(0, call_item(1, "add", text)), ended(()))
    (use,) = result.message.tool_uses()
    assert (use.input, use.raw) == ({}, text)


def test_text_is_shown_once_and_nul_is_taken_out():
    for raw in (
        (created(), *streamed_text(0, ("a\x00b", "c")), ended((text_item("a\x00bc"),))),
        (created(), *streamed_text(0, ("a\x00b", "c")), ended(())),
        said(text_item("abc")),
    ):
        shown: list[str] = []
        assert ask(*raw, shown=shown).message.text() == "abc"
        assert "".join(shown) == "abc"


@pytest.mark.parametrize("streams", [True, False])
def test_a_refusal_is_an_answer_of_its_own(streams):
    shown: list[str] = []
    parts = [
        event("response.refusal.delta", item_id="msg_1", output_index=0, delta=piece)
        for piece in ("I can", "not.")
    ]
    result = ask(created(), *(parts if streams else ()), ended((refusal_item("I cannot."),)),
                 shown=shown)  # fmt: skip
    assert (result.finish, result.message.text()) == ("refusal", "I cannot.")
    assert "".join(shown) == "I cannot."


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_output_tokens", "length"), ("content_filter", "refusal")]
)
def test_an_incomplete_response(reason, finish):
    raw = said(text_item("Hel"), status="incomplete", incomplete_details={"reason": reason})
    result = ask(*raw)
    assert (result.finish, result.message.text()) == (finish, "Hel")
    raw = said(call_item(1, "add", '{"a'), status="incomplete")
    assert ask(*raw).finish == "tool_calls"
    raw = said(call_item(1, "delete_everything", ""), status="incomplete")
    assert ask(*raw).message.tool_uses()[0].raw == "{", "it is no call without arguments"


def failed(code: str | None, words: str = "w") -> Answer:
    error = None if code is None else {"code": code, "message": words}
    whole = response((), status="failed", error=error, usage=None)
    return Answer(raw=(created(), event("response.failed", response=whole)))


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (failed("server_error"), Transient, "MODEL_UNAVAILABLE"),
        (failed(None), Transient, "MODEL_UNAVAILABLE"),
        (failed("rate_limit_exceeded"), Limited, "LIMITED"),
        (failed("invalid_prompt"), Permanent, "MODEL_BAD_REQUEST"),
        (failed("bio_policy"), Permanent, "MODEL_REFUSED"),
        (failed("context_length_exceeded"), Permanent, "CONTEXT_OVERFLOW"),
        (failed("insufficient_quota"), Permanent, "INSUFFICIENT_QUOTA"),
        (Answer(body=response((), status="queued")), Transient, "MODEL_UNAVAILABLE"),
        (Answer(body=response((), status="in_progress")), Transient, "MODEL_UNAVAILABLE"),
        (Answer(body=response((), status="cancelled")), Transient, "MODEL_UNAVAILABLE"),
        (
            Answer(raw=(event("error", code="rate_limit_exceeded", message="m", param=None),)),
            Limited,
            "LIMITED",
        ),
        (
            Answer(raw=(event("error", error={"type": "server_error", "message": "m"}),)),
            Transient,
            "MODEL_UNAVAILABLE",
        ),
        (
            Answer(raw=(created(), sse({"error": {"message": "m", "code": 400}}))),
            Permanent,
            "MODEL_BAD_REQUEST",
        ),
        (refusal(429, "slow", headers={"Retry-After": "3"}), Limited, "LIMITED"),
        (refusal(429, "quota", code="insufficient_quota"), Permanent, "INSUFFICIENT_QUOTA"),
        (refusal(401, "Incorrect API key"), Permanent, "MODEL_AUTH"),
        (refusal(404, "Not Found"), Permanent, "MODEL_NOT_FOUND"),
        (Answer(status=404, body={"detail": "Not Found"}), Permanent, "MODEL_NOT_FOUND"),
        (Answer(body={"ok": True}), Transient, "BAD_STREAM"),
        (Answer(body=[1]), Transient, "BAD_STREAM"),
        (Answer(raw=(b"data: 5\n\n",)), Transient, "BAD_STREAM"),
        (
            Answer(raw=(event("response.output_text.delta", delta=5),)),
            Transient,
            "BAD_STREAM",
        ),
        (Answer(raw=(event("response.output_item.done"),)), Transient, "BAD_STREAM"),
        (Answer(raw=(created(),)), Transient, "STREAM_CUT"),
        (
            Answer(raw=(created(), *streamed_text(0, ("Hello",)))),
            Transient,
            "STREAM_CUT",
        ),
        (Answer(cut_after=2, delay_s=0.01), Transient, "STREAM_CUT"),
    ],
)
def test_what_goes_wrong(answer, kind, code):
    error = fails(kind, answer)
    assert error.error_code == code
    if isinstance(error, Limited):
        assert error.scope.startswith(f"openai-responses:{REASONER}:")


def test_thinking_counts_as_the_first_token_and_queueing_does_not():
    request = replace(ASK, first_token_timeout_s=0.1, total_timeout_s=0.3)
    queued = event("response.queued", response=response((), status="queued"))
    silent = Answer(raw=(created(), queued), hold_open_s=30)
    assert fails(Transient, silent, request=request).error_code == "FIRST_TOKEN_TIMEOUT"
    thinking = event("response.reasoning_text.delta", output_index=0, delta="hm")
    busy = Answer(raw=(created(), thinking), hold_open_s=30)
    assert fails(Transient, busy, request=request).error_code == "MODEL_TIMEOUT"


def test_a_rate_that_the_headers_say():
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    result, _ = asked(replace(Answer(), headers=headers))
    assert result.rate is not None
    assert (result.rate.per_s, result.rate.used_up) == (1.0, True)


def test_events_that_nobody_knows_are_passed_over():
    odd = [event("response.future.delta", delta={"x": 1}), event("keepalive")]
    search = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    output = (search, text_item("Hi."))
    assert ask(created(), *odd, ended(output)).message.text() == "Hi."


DECODED = [
    (created(), *streamed_text(0, ("Zwölf ", "☃")), ended((text_item("Zwölf ☃"),))),
    (
        created(),
        *streamed_text(0, ("I add.",)),
        *streamed_call(1, call_item(1, "add", '{"a": 1}')),
        *streamed_call(2, call_item(2, "sub", '{"b": [2]}')),
        ended(
            (
                text_item("I add."),
                call_item(1, "add", '{"a": 1}'),
                call_item(2, "sub", '{"b": [2]}'),
            )
        ),
    ),
    (created(), ended((refusal_item("No."),))),
    said(text_item("Hel"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
]
FINISH = {"completed": {"stop", "tool_calls", "refusal"}, "incomplete": {"length"}}


@pytest.mark.parametrize("raw", DECODED)
def test_the_official_sdk_decodes_the_same(raw):
    async def work(server, client):
        server.default = Answer(raw=raw)
        ours = await model_of(server, client).chat(ASK)
        text, final = "", None
        async with openai.AsyncOpenAI(base_url=server.base_url, api_key=KEY, max_retries=0) as sdk:
            stream = await sdk.responses.create(model=REASONER, input="Hello?", stream=True)
            async for one in stream:
                if one.type == "response.output_text.delta":
                    text += one.delta
                elif one.type in {"response.completed", "response.incomplete"}:
                    final = one.response
        assert final is not None
        assert final.usage is not None
        refused = [
            part.refusal
            for item in final.output
            if item.type == "message"
            for part in item.content
            if part.type == "refusal"
        ]
        assert ours.message.text() == final.output_text + "".join(refused)
        assert not text or text == ours.message.text()
        assert [(u.id, u.name, u.input) for u in ours.message.tool_uses()] == [
            (item.call_id, item.name, json.loads(item.arguments))
            for item in final.output
            if item.type == "function_call"
        ]
        assert ours.usage == Usage(
            final.usage.input_tokens,
            final.usage.output_tokens,
            final.usage.input_tokens_details.cached_tokens,
        )
        assert final.status is not None
        assert ours.finish in FINISH[final.status]
        assert ours.model == final.model

    run(work)


def test_the_official_sdk_takes_what_we_send_as_its_own():
    """What we write is what the SDK's types say, item by item."""
    from openai.types.responses import ResponseInputItemParam
    from pydantic import TypeAdapter

    conversation = (user("Go."), reasoned().message, Message("tool", (ToolResult("call_1", "2"),)))
    for item in sent(ChatRequest("m", conversation))["input"]:
        TypeAdapter(ResponseInputItemParam).validate_python(item)
