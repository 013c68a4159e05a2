"""The Messages API: both of its versions, reasoning, caches, refusals, and the official client on
the same bytes.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import anthropic
import httpx
import pytest
from httpx_aiohttp import HttpxAiohttpClient

from harness_common.contracts.model import (
    Capabilities,
    ChatRequest,
    ChatResult,
    ToolDef,
    Usage,
)
from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.history import repaired
from harness_common.core.message import Message, Text, ToolResult, ToolUse, dumps, loads, user
from harness_common.core.throttle import Rate
from harness_worker.models.anthropic import Anthropic, _tool_choice, capabilities_of
from harness_worker.models.anthropic_errors import as_x_headers, rate_from
from harness_worker.models.prices import load_prices
from harness_worker.models.retry_after import retry_after_s
from tests.fakes.anthropic_server import (
    FakeAnthropic,
    broken_rule,
    delta,
    end,
    event,
    head,
    start,
    stop,
    text_delta,
    thinking,
    tool_use,
)
from tests.fakes.openai_server import Answer

E = TypeVar("E", bound=HarnessError)


def plain_client() -> httpx.AsyncClient:
    """Build the transport of `shared_client` without the roots of TLS, which take a tenth of a
    second to load.
    """
    return HttpxAiohttpClient(verify=False, timeout=None)


KEY = "sk-ant-verysecretvalue123456"
OLD, NEW = "2023-06-01", "2026-10-21"
SONNET = "claude-sonnet-4-6"
TOOL = ToolDef("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
ASK = ChatRequest(SONNET, (user("Hello?"),), tools=(TOOL,))


def talk(
    *calls: tuple[Answer, ChatRequest],
    version: str = NEW,
    model: str = SONNET,
    shown: list[str] | None = None,
    can: Capabilities | None = None,
) -> tuple[list[ChatResult], list[Any]]:
    """Make calls one after another; return the results, and what the server saw."""

    async def on_delta(text: str) -> None:
        if shown is not None:
            shown.append(text)

    async def main() -> tuple[list[ChatResult], list[Any]]:
        async with FakeAnthropic() as server, plain_client() as client:
            made = Anthropic(
                client, model, prices=load_prices(), version=version, base_url=server.base_url,
                api_key=KEY, capabilities=can,
            )  # fmt: skip
            results = []
            for answer, request in calls:
                server.answers.append(answer)
                results.append(await made.chat(request, on_delta))
            assert server.calls == len(calls), "nobody retries"
            return results, server.requests

    return asyncio.run(main())


def ask(answer: Answer, request: ChatRequest = ASK, **how: Any) -> ChatResult:
    return talk((answer, request), **how)[0][0]


def sent(request: ChatRequest, **how: Any) -> Any:
    """Return the body and headers that a request is sent as."""
    return talk((Answer(), request), **how)[1][0]


def stream(*parts: bytes) -> Answer:
    return Answer(raw=parts)


def fails(kind: type[E], answer: Answer, request: ChatRequest = ASK) -> E:
    with pytest.raises(kind) as caught:
        ask(answer, request)
    assert KEY not in caught.value.message
    assert caught.value.__cause__ is None
    return caught.value


def refused(status: int, kind: str, message: str = "no", **headers: str) -> Answer:
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_x"}
    return Answer(
        status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_with_usage_cost_and_ids():
    shown: list[str] = []
    result = ask(Answer(headers={"request-id": "req_7"}), shown=shown)
    assert result.message == Message("assistant", (Text("Hello there."),))
    assert "".join(shown) == "Hello there."
    assert result.usage == Usage(20, 5, 4, cache_write_tokens=6)
    assert result.model == SONNET
    assert result.provider_request_id == "req_7"
    assert result.cost_usd == pytest.approx((10 * 3 + 6 * 3.75 + 4 * 0.3 + 5 * 15) / 1e6)


def test_bytes_may_be_split_anywhere():
    text = "Zwölf ☃ 漢字 \r\n data: x"
    raw = head() + start(0, {"type": "text", "text": ""}) + text_delta(0, text) + stop(0) + end()
    raw = raw.replace(b"\\u2603", "☃".encode())
    result = ask(Answer(raw=tuple(raw[i : i + 1] for i in range(len(raw)))))
    assert result.message.text() == text
    assert result.usage.output_tokens == 5


def test_parallel_calls_whose_pieces_alternate():
    parts = (
        head(), start(0, {"type": "text", "text": "I "}), text_delta(0, "add."), stop(0),
        start(1, {"type": "tool_use", "id": "toolu_a", "name": "add", "input": {}}),
        start(2, {"type": "tool_use", "id": "toolu_a", "name": "add", "input": {}}),
        delta(2, "input_json_delta", partial_json='{"a"'),
        delta(1, "input_json_delta", partial_json=""),
        delta(1, "input_json_delta", partial_json='{"a": 1}'),
        delta(2, "input_json_delta", partial_json=": 2}"),
        stop(1), stop(2), event("future_event", {"x": 1}), end("tool_use"),
    )  # fmt: skip
    result = ask(stream(*parts))
    first, second = result.message.tool_uses()
    assert (first.input, second.input) == ({"a": 1}, {"a": 2})
    assert first.id == "toolu_a"
    assert second.id != first.id, "ids are unique, and the tool is called twice"
    assert result.message.text() == "I add."
    assert result.finish == "tool_calls"


def test_a_call_without_arguments_and_a_malformed_one():
    result = ask(stream(head(), tool_use(0, "add"), tool_use(1, "add", '{"a": '), end("tool_use")))
    empty, broken = result.message.tool_uses()
    assert (empty.input, empty.raw) == ({}, None)
    assert broken.raw == '{"a": '


def test_a_call_that_was_cut_off_before_its_arguments_is_not_one_without():
    result = ask(stream(head(), tool_use(0, "delete_everything"), end("max_tokens")))
    (use,) = result.message.tool_uses()
    assert use.raw == "{"


def test_a_call_that_a_refusal_broke_off_is_not_made():
    result = ask(stream(head(), tool_use(0, "delete_everything"), end("refusal")))
    assert (result.finish, result.message.tool_uses()) == ("refusal", ())
    assert result.message.text() == "The model declined to answer."


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"), ("stop_sequence", "stop"), ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"), ("refusal", "refusal"),
        ("pause_turn", "pause"), ("something_new", "stop"),
    ],
)  # fmt: skip
def test_how_an_answer_ends(reason, finish):
    result = ask(Answer(finish=reason))
    assert result.finish == finish
    assert ask(Answer(finish=reason), model="other").finish == finish


def test_no_more_is_asked_for_than_the_model_answers():
    can = Capabilities(max_output_tokens=500)
    assert sent(replace(ASK, max_tokens=900), can=can)["body"]["max_tokens"] == 500


def test_a_refusal_says_why():
    details = {"type": "refusal", "category": "bio", "explanation": "I cannot help with that."}
    result = ask(stream(head(), end("refusal", stop_details=details)))
    assert (result.finish, result.message.text()) == ("refusal", "I cannot help with that.")
    assert ask(stream(head(), end("refusal"))).message.text() == "The model declined to answer."


def test_an_answer_in_one_piece():
    from tests.fakes.anthropic_server import whole

    answer = Answer(pieces=("I add.",), tools=(("add", '{"a": 1}'),))
    shown: list[str] = []
    result = ask(Answer(body=whole(answer, SONNET)), shown=shown)
    (use,) = result.message.tool_uses()
    assert (use.input, result.finish, shown) == ({"a": 1}, "tool_calls", ["I add."])
    assert result.usage == Usage(20, 5, 4, cache_write_tokens=6)


def test_usage_is_the_last_that_was_said_and_a_cache_for_an_hour_counts_apart():
    first = {
        "input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 100,
        "cache_creation": {"ephemeral_5m_input_tokens": 40, "ephemeral_1h_input_tokens": 60},
    }  # fmt: skip
    last = {"input_tokens": 30, "output_tokens": 9, "cache_read_input_tokens": 70}
    usage = ask(stream(head(usage=first), end(usage=last))).usage
    assert usage == Usage(200, 9, 70, cache_write_tokens=100, cache_write_1h_tokens=60)
    unknown = ask(stream(head(usage={"input_tokens": 0}), end())).usage
    assert unknown.estimated


# ── both generations ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("version", "model", "temperature"),
    [
        (OLD, SONNET, 0.3), (NEW, SONNET, None), ("2027-01-01", SONNET, None),
        (OLD, "claude-opus-5", None), (OLD, "my-llama", 0.3),
    ],
)  # fmt: skip
def test_sampling_parameters_go_where_they_are_taken(version, model, temperature):
    request = replace(ASK, temperature=0.3, options={"top_k": 5, "top_p": 0.9})
    body = sent(request, version=version, model=model)["body"]
    assert body.get("temperature") == temperature
    assert body.get("top_k") == (None if temperature is None else 5)
    assert capabilities_of(model, version).temperature == (temperature is not None)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_the_key_goes_in_the_header_of_the_version(version):
    headers = {k.lower(): v for k, v in sent(ASK, version=version)["headers"].items()}
    assert headers["anthropic-version"] == version
    assert headers.get("x-api-key") == (KEY if version == OLD else None)
    assert headers.get("authorization") == (f"Bearer {KEY}" if version == NEW else None)
    betas = sent(replace(ASK, options={"betas": ["a-1", "b-2"]}), version=version)["headers"]
    assert {k.lower(): v for k, v in betas.items()}["anthropic-beta"] == "a-1,b-2"


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
def test_the_address_may_have_the_version_or_not(path):
    async def main() -> None:
        async with FakeAnthropic() as server, plain_client() as client:
            url = server.base_url + path
            made = Anthropic(client, "m", prices=load_prices(), version=NEW, base_url=url)
            assert (await made.chat(ASK)).message.text() == "Hello there."
            assert "authorization" not in {k.lower() for k in server.requests[0]["headers"]}

    asyncio.run(main())


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


def test_results_stand_in_the_next_message_and_first():
    said = (
        Message("system", (Text("be brief"),)), user("hi"),
        Message(
            "assistant",
            (Text("I look."), ToolUse("a", "loo k", {"q": 1}), ToolUse("b", "look", {}, "{")),
        ),
        Message("tool", (ToolResult("a", "found"), ToolResult("b", "late", True, "TIMEOUT"))),
        user("hurry"),
    )  # fmt: skip
    body = sent(replace(ASK, messages=said, system="You help."))["body"]
    assert [m["role"] for m in body["messages"]] == ["user", "assistant", "user"]
    first, asked, answered = (m["content"] for m in body["messages"])
    assert [b["text"] for b in first] == ["[system] be brief", "hi"]
    assert asked[1] == {"type": "tool_use", "id": "a", "name": "loo_k", "input": {"q": 1}}
    assert asked[2]["input"] == {"invalid_arguments": "{"}
    assert [b["type"] for b in answered] == ["tool_result", "tool_result", "text"]
    assert answered[1] == {
        "type": "tool_result", "tool_use_id": "b", "content": "Error (TIMEOUT): late",
        "is_error": True,
    }  # fmt: skip
    assert broken_rule(body, {"anthropic-version": NEW}) is None


def test_the_fake_server_refuses_what_the_real_one_does():
    """Or the tests over it show nothing."""
    orphan = (user("hi"), Message("assistant", (ToolUse("a", "look", {}),)), user("go on"))
    with pytest.raises(Permanent, match="tool_use ids"):
        ask(Answer(), replace(ASK, messages=orphan))
    ask(Answer(), replace(ASK, messages=repaired(orphan, "anthropic", SONNET)))
    with pytest.raises(Permanent, match="temperature"):
        _send_temperature()


def _send_temperature() -> None:
    async def main() -> None:
        async with FakeAnthropic() as server, plain_client() as client:
            can = replace(capabilities_of(SONNET, NEW), temperature=True)
            made = Anthropic(
                client, SONNET, prices=load_prices(), version=NEW, base_url=server.base_url,
                capabilities=can,
            )  # fmt: skip
            await made.chat(replace(ASK, temperature=1.0))

    asyncio.run(main())


def test_a_conversation_that_ends_with_the_model_is_asked_to_go_on():
    said = (user("hi"), Message("assistant", (Text("So far,"),)))
    body = sent(replace(ASK, messages=said))["body"]
    assert body["messages"][-1]["content"][0]["text"] == "Continue."


def marks(body: Any) -> list[str]:
    """List what is marked for the cache."""
    found = []
    for name, blocks in (("system", body.get("system", [])), ("tools", body.get("tools", []))):
        found += [name for b in blocks if isinstance(b, dict) and "cache_control" in b]
    for number, message in enumerate(body["messages"]):
        found += [f"{number}.{i}" for i, b in enumerate(message["content"]) if "cache_control" in b]
    return found


def test_the_stable_prefix_and_the_end_of_the_conversation_are_marked_for_the_cache():
    said = (
        user("hi"), Message("assistant", (ToolUse("a", "add", {}),)),
        Message("tool", (ToolResult("a", "1"),)), Message("assistant", (ToolUse("b", "add", {}),)),
        Message("tool", (ToolResult("b", "2"),)),
    )  # fmt: skip
    request = replace(ASK, messages=said, system="You help.")
    body = sent(request)["body"]
    assert marks(body) == ["system", "2.0", "4.0"], "at most four are allowed"
    assert body["system"][0]["cache_control"] == {"type": "ephemeral"}
    assert marks(sent(replace(request, system=""))["body"]) == ["tools", "2.0", "4.0"]
    assert marks(sent(replace(request, tools=()))["body"]) == ["system"]
    hour = sent(replace(request, options={"cache": "1h"}))["body"]
    assert hour["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    off = sent(replace(request, options={"cache": False}))["body"]
    assert marks(off) == []
    assert off["system"] == "You help."


def test_a_growing_conversation_keeps_its_bytes():
    """A cache is read only as far as the bytes are the same."""
    said = [user("hi"), Message("assistant", (ToolUse("a", "add", {}),)),
            Message("tool", (ToolResult("a", "1"),))]  # fmt: skip
    before = sent(replace(ASK, messages=said, options={"cache": False}))["body"]
    said += [Message("assistant", (Text("and"), ToolUse("b", "add", {"a": 2}))),
             Message("tool", (ToolResult("b", "2"),))]  # fmt: skip
    after = sent(replace(ASK, messages=said, options={"cache": False}))["body"]
    assert after["messages"][:3] == before["messages"]
    assert after["tools"] == before["tools"]


# ── reasoning ────────────────────────────────────────────────────────────────────────────────────

SECRET = "The user must not read this: canary-7431."
ADAPTIVE = {"thinking": {"type": "adaptive"}}
SIGNED = thinking(0, "", "sig+A==")
READABLE = thinking(0, SECRET, "sig+B==")
CALLS = tool_use(1, "add", '{"a": 1}', use_id="toolu_x")


def then(result: ChatResult, request: ChatRequest) -> ChatRequest:
    """Build the request that follows, from what would be read back from Postgres."""
    said = loads(dumps(result.message))
    answers = Message("tool", tuple(ToolResult(u.id, "2") for u in said.tool_uses()))
    messages = (*request.messages, said, *((answers,) if answers.content else ()))
    return replace(request, messages=repaired(messages, "anthropic", SONNET))


def two(answer: Answer, request: ChatRequest, change: Any = None) -> tuple[ChatResult, Any, Any]:
    """Ask twice; return the first result, and the bodies of both requests."""

    async def main() -> tuple[ChatResult, Any, Any]:
        async with FakeAnthropic() as server, plain_client() as client:
            made = Anthropic(
                client, SONNET, prices=load_prices(), version=NEW, base_url=server.base_url
            )
            server.answers.append(answer)
            result = await made.chat(request)
            following = then(result, request)
            await made.chat(change(following) if change else following)
            first, second = (r["body"] for r in server.requests)
            return result, first, second

    return asyncio.run(main())


def test_reasoning_is_asked_for_as_signatures_alone_and_sent_back_as_it_came():
    redacted = start(2, {"type": "redacted_thinking", "data": "b64=="}) + stop(2)
    answer = stream(head(), SIGNED, CALLS, redacted, end("tool_use"))
    result, first, second = two(answer, replace(ASK, options=ADAPTIVE))
    assert first["thinking"] == {"type": "adaptive", "display": "omitted"}
    assert "keep_reasoning" not in first
    blocks = second["messages"][1]["content"]
    assert blocks[0] == {"type": "thinking", "thinking": "", "signature": "sig+A=="}
    assert blocks[1]["id"] == "toolu_x"
    assert blocks[2] == {"type": "redacted_thinking", "data": "b64=="}
    assert result.message.tool_uses()[0].id == "toolu_x"


@pytest.mark.parametrize(
    "thinks", [ADAPTIVE, {"thinking": {"type": "enabled", "budget_tokens": 2048}}, {}]
)
def test_reasoning_that_can_be_read_is_not_kept(thinks):
    """J8: it goes into no message, event or delta; the API then does without it."""
    shown: list[str] = []
    answer = stream(head(), READABLE, CALLS, end("tool_use"))
    result = ask(answer, replace(ASK, options=thinks), shown=shown)
    assert "canary" not in dumps(result.message)
    assert "sig+B" not in dumps(result.message), "nothing of it: half is refused"
    assert not shown
    _, _, second = two(answer, replace(ASK, options=thinks))
    assert [b["type"] for b in second["messages"][1]["content"]] == ["tool_use"]
    enabled = thinks.get("thinking", {}).get("type") == "enabled"
    assert ("thinking" in second) == (bool(thinks) and not enabled)


def test_reasoning_is_kept_for_who_asks():
    options = {**ADAPTIVE, "keep_reasoning": True}
    answer = stream(head(), READABLE, CALLS, end("tool_use"))
    result, first, second = two(answer, replace(ASK, options=options))
    assert first["thinking"] == {"type": "adaptive"}
    assert "keep_reasoning" not in first
    assert SECRET in dumps(result.message)
    assert second["messages"][1]["content"][0] == {
        "type": "thinking", "thinking": SECRET, "signature": "sig+B==",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda r: replace(r, system="Another."),
        lambda r: replace(r, tools=()),
        lambda r: replace(r, messages=(user("Hello!"), *r.messages[1:])),
        lambda r: replace(r, messages=(user("Before."), *r.messages)),
    ],
    ids=["system", "tools", "message", "more"],
)
def test_reasoning_is_left_out_when_what_stood_before_it_has_changed(change):
    """Newer models refuse it then; a compaction and a tool that is hidden change it."""
    answer = stream(head(), SIGNED, CALLS, end("tool_use"))
    _, _, second = two(answer, replace(ASK, options=ADAPTIVE), change)
    assert "sig+A" not in json.dumps(second)
    assert any(b["type"] == "tool_use" for m in second["messages"] for b in m["content"])


def test_reasoning_of_another_model_is_left_out():
    answer = stream(head(), SIGNED, CALLS, end("tool_use"))
    said = ask(answer).message
    assert said.extra["model"] == SONNET
    (kept,) = repaired((user("x"), said), "anthropic", "claude-opus-5")[1:2]
    assert kept.extra is None


def test_a_message_that_was_changed_since_is_sent_as_it_stands():
    """Calls that were read out of its text stand in no layout: without them their results would be
    refused for ever.
    """
    answer = stream(head(), SIGNED, start(1, {"type": "text", "text": "I call."}), stop(1), end())
    read = ToolUse("text_1_0", "add", {"a": 1})

    def called(request: ChatRequest) -> ChatRequest:
        said = request.messages[-1]
        said = replace(said, content=(*said.content, read))
        results = Message("tool", (ToolResult("text_1_0", "2"),))
        messages = (*request.messages[:-1], said, results)
        return replace(request, messages=repaired(messages, "anthropic", SONNET))

    _, _, second = two(answer, replace(ASK, options=ADAPTIVE), called)
    assert [b["type"] for b in second["messages"][1]["content"]] == ["text", "tool_use"]


def test_reasoning_with_a_nul_cannot_be_stored_so_it_is_not_kept():
    answer = stream(head(), thinking(0, "a\x00b", "sig"), CALLS, end("tool_use"))
    result = ask(answer, replace(ASK, options={**ADAPTIVE, "keep_reasoning": True}))
    assert result.message.extra is None


def test_a_pause_is_sent_again_with_all_that_came():
    search = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "x"}]}
    answer = stream(
        head(), start(0, {"type": "text", "text": "I search."}), stop(0),
        start(1, search), delta(1, "input_json_delta", partial_json='{"query": "cats"}'), stop(1),
        start(2, found), stop(2), end("pause_turn"),
    )  # fmt: skip
    result, _, second = two(answer, ASK)
    assert result.finish == "pause"
    assert result.message.trust == "untrusted", "what a search brings is from outside"
    assert [m["role"] for m in second["messages"]] == ["user", "assistant"]
    assert second["messages"][1]["content"][1:] == [{**search, "input": {"query": "cats"}}, found]


def test_temperature_is_left_out_while_a_model_reasons():
    request = replace(ASK, temperature=0.2, options=ADAPTIVE)
    assert "temperature" not in sent(request, version=OLD)["body"]


class Forced(NamedTuple):
    choice: str
    sent: Any


@pytest.mark.parametrize(
    "forced",
    [
        Forced("auto", {"type": "auto"}), Forced("required", {"type": "any"}),
        Forced("none", {"type": "none"}), Forced("add", {"type": "tool", "name": "add"}),
    ],
)  # fmt: skip
def test_a_tool_may_be_forced(forced):
    assert _tool_choice(forced.choice) == forced.sent
    assert _tool_choice(None) is None


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        (refused(400, "invalid_request_error"), Permanent, "MODEL_BAD_REQUEST"),
        (
            refused(400, "", "prompt is too long: 210000 tokens > 200000 maximum"),
            Permanent, "CONTEXT_OVERFLOW",
        ),
        (
            refused(400, "", "input length and `max_tokens` exceed context limit: 1 + 2 > 2"),
            Permanent, "CONTEXT_OVERFLOW",
        ),
        (refused(400, "", "Your credit balance is too low"), Permanent, "INSUFFICIENT_QUOTA"),
        (refused(402, "billing_error"), Permanent, "INSUFFICIENT_QUOTA"),
        (refused(401, "authentication_error", f"bad key {KEY}"), Permanent, "MODEL_AUTH"),
        (refused(403, "permission_error"), Permanent, "MODEL_AUTH"),
        (refused(404, "not_found_error", "model: claude-9"), Permanent, "MODEL_NOT_FOUND"),
        (refused(413, "request_too_large"), Permanent, "REQUEST_TOO_LARGE"),
        (refused(429, "rate_limit_error"), Limited, "LIMITED"),
        (refused(529, "overloaded_error"), Limited, "LIMITED"),
        (refused(529, "overloaded_error", x_should_retry="false"), Limited, "LIMITED"),
        (refused(503, "api_error", retry_after="2"), Limited, "LIMITED"),
        (refused(500, "api_error"), Transient, "MODEL_UNAVAILABLE"),
        (refused(504, "timeout_error"), Transient, "MODEL_UNAVAILABLE"),
        (refused(500, "api_error", x_should_retry="false"), Permanent, "MODEL_NO_RETRY"),
        (Answer(status=502, body=b"<html>Bad gateway</html>"), Transient, "MODEL_UNAVAILABLE"),
        (Answer(status=307, body=b"", headers={"location": "/x"}), Permanent, "MODEL_BAD_REQUEST"),
        (Answer(status=422, body={"detail": [{"msg": "bad"}]}), Permanent, "MODEL_BAD_REQUEST"),
    ],
)  # fmt: skip
def test_refusals_are_classified(answer, kind, code):
    error = fails(kind, answer)
    assert error.error_code == code


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("overloaded_error", Limited, "LIMITED"),
        ("rate_limit_error", Limited, "LIMITED"),
        ("api_error", Transient, "MODEL_UNAVAILABLE"),
        ("invalid_request_error", Permanent, "MODEL_BAD_REQUEST"),
        ("something_new", Transient, "MODEL_UNAVAILABLE"),
    ],
)
def test_an_error_may_come_after_status_200(name, kind, code):
    error = {"error": {"type": name, "message": "Overloaded"}}
    begun = (head(), start(0, {"type": "text", "text": ""}), text_delta(0, "Hel"))
    caught = fails(kind, stream(*begun, event("error", error)))
    assert caught.error_code == code
    if isinstance(caught, Limited):
        provider, model, fingerprint = caught.scope.split(":")
        assert (provider, model, len(fingerprint)) == ("anthropic", SONNET, 12)
        assert caught.detail["status"] in {429, 529}


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (stream(head(), start(0, {"type": "text", "text": "Hel"})), "STREAM_CUT"),
        (stream(head(), text_delta(3, "no such block")), "BAD_STREAM"),
        (stream(b"data: {half"), "STREAM_CUT"),
        (stream(b"data: {half\n\n"), "BAD_STREAM"),
        (stream(b'data: ["a"]\n\n'), "BAD_STREAM"),
        (stream(b'data: {"no": "type"}\n\n'), "BAD_STREAM"),
        (Answer(body={"type": "completion"}), "BAD_STREAM"),
        (Answer(body={"type": "message"}), "BAD_STREAM"),
        (Answer(cut_after=3), "STREAM_CUT"),
    ],
)  # fmt: skip
def test_what_is_no_whole_answer_is_a_failure(answer, code):
    assert fails(Transient, answer).error_code == code


def test_an_answer_is_whole_once_its_end_was_said():
    """Only the end of the body can be lost then."""
    raw = head() + start(0, {"type": "text", "text": "Hi"}) + end()
    assert ask(stream(raw.removesuffix(event("message_stop", {})))).message.text() == "Hi"


def test_nobody_answers():
    async def main() -> None:
        async with plain_client() as client:
            made = Anthropic(
                client, "m", prices=load_prices(), version=NEW, base_url="http://127.0.0.1:1"
            )
            with pytest.raises(Transient) as caught:
                await made.chat(ASK)
            assert caught.value.error_code == "MODEL_CONNECTION"

    asyncio.run(main())


def limits(**values: str) -> dict[str, str]:
    return {f"anthropic-ratelimit-{k.replace('_', '-')}": v for k, v in values.items()}


def test_the_limits_of_the_headers_are_read():
    date = {"date": "Mon, 30 Nov 2026 10:00:00 GMT"}
    now = datetime(2020, 1, 1, tzinfo=UTC)  # our clock is wrong, and does not matter

    def wait(headers: dict[str, str]) -> float | None:
        return retry_after_s(as_x_headers({**headers, **date}, now), now)

    soon, late = "2026-11-30T10:00:30Z", "2026-11-30T10:02:00+00:00"
    assert wait(limits(requests_remaining="0", requests_reset=soon)) == 30
    assert wait(limits(requests_remaining="7", requests_reset=soon)) is None
    both = limits(
        input_tokens_remaining="0", input_tokens_reset=soon,
        output_tokens_remaining="0", output_tokens_reset=late, tokens_remaining="9",
        tokens_reset=late,
    )  # fmt: skip
    assert wait(both) == 120, "all that are used up"
    assert wait({**both, "retry-after": "7"}) == 7
    assert wait(limits(requests_remaining="0", requests_reset="soon")) is None
    used = limits(requests_limit="60", requests_remaining="0", requests_reset=late)
    assert rate_from({**used, **date}) == Rate(0.5, used_up=True)
    assert rate_from({}) is None


def test_a_limit_is_raised_with_its_time_and_rate():
    used = limits(
        requests_limit="60", requests_remaining="0", requests_reset="2026-11-30T10:01:00Z"
    )
    headers = {**used, "Date": "Mon, 30 Nov 2026 10:00:00 GMT"}
    answer = replace(refused(429, "rate_limit_error"), headers=headers)
    error = fails(Limited, answer)
    assert error.retry_after_s == 60
    assert error.detail["limit_per_s"] == 1.0
    assert error.detail["status"] == 429


# ── the official client on the same bytes ────────────────────────────────────────────────────────

RECORDED = {
    "text": (head(SONNET), start(0, {"type": "text", "text": ""}), text_delta(0, "Hi "),
             text_delta(0, "☃"), stop(0), end()),
    "tools": (head(SONNET), start(0, {"type": "text", "text": ""}), text_delta(0, "So:"), stop(0),
              tool_use(1, "add", '{"a"', ': 1, "b": [1.5, null, "x"]}', use_id="t1"),
              tool_use(2, "add", "", use_id="t2"), end("tool_use")),
    "reasoning": (head(SONNET), thinking(0, "Let me see.", "sig=="),
                  start(1, {"type": "text", "text": ""}), text_delta(1, "42"), stop(1),
                  end("max_tokens")),
    "cache": (head(SONNET, {"input_tokens": 3, "cache_creation_input_tokens": 5,
                            "cache_read_input_tokens": 7, "output_tokens": 1}),
              start(0, {"type": "text", "text": "x"}), stop(0),
              end("stop_sequence", {"output_tokens": 11, "input_tokens": 4})),
    "pause": (head(SONNET), start(0, {"type": "text", "text": "wait"}), stop(0), end("pause_turn")),
    "refusal": (head(SONNET), start(0, {"type": "text", "text": "No"}), stop(0), end("refusal")),
}  # fmt: skip
FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length",
          "tool_use": "tool_calls", "pause_turn": "pause", "refusal": "refusal"}  # fmt: skip


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_official_client_reads_the_same(name):
    async def main() -> None:
        async with FakeAnthropic() as server, plain_client() as client:
            server.default = stream(*RECORDED[name])
            ours = await Anthropic(
                client, SONNET, prices=load_prices(), version=NEW, base_url=server.base_url,
                api_key=KEY,
            ).chat(replace(ASK, options={"keep_reasoning": True}))  # fmt: skip
            official = anthropic.AsyncAnthropic(
                base_url=server.base_url, api_key=KEY, max_retries=0
            )
            async with (
                official,
                official.messages.stream(
                    model=SONNET, max_tokens=10, messages=[{"role": "user", "content": "Hello?"}]
                ) as opened,
            ):
                theirs = await opened.get_final_message()
            ways = [{k.lower(): v for k, v in r["headers"].items()} for r in server.requests]
        for header in ("anthropic-version", "authorization", "x-api-key"):
            assert ways[0].get(header) == ways[1].get(header)
        assert ours.message.text() == "".join(b.text for b in theirs.content if b.type == "text")
        assert [(u.id, u.name, u.input) for u in ours.message.tool_uses()] == [
            (b.id, b.name, b.input) for b in theirs.content if b.type == "tool_use"
        ]
        assert ours.finish == FINISH[theirs.stop_reason or ""]
        usage = theirs.usage
        read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        assert ours.usage == Usage(
            usage.input_tokens + read + written, usage.output_tokens, read,
            cache_write_tokens=written,
        )  # fmt: skip
        layout = (ours.message.extra or {"layout": []})["layout"]
        assert [b for b in layout if isinstance(b, dict)] == [
            b.model_dump(exclude_none=True) for b in theirs.content if b.type == "thinking"
        ]
        assert (ours.model, ours.provider_request_id) == (theirs.model, theirs.id)

    asyncio.run(main())


def test_the_official_client_classifies_the_same():
    """What it would try again is not permanent with us, and the other way round."""

    async def main() -> None:
        async with FakeAnthropic() as server:
            official = anthropic.AsyncAnthropic(
                base_url=server.base_url, api_key=KEY, max_retries=0
            )
            for status, kind, error in (
                (429, "rate_limit_error", anthropic.RateLimitError),
                (401, "authentication_error", anthropic.AuthenticationError),
                (404, "not_found_error", anthropic.NotFoundError),
                (529, "overloaded_error", anthropic.InternalServerError),
            ):
                server.default = refused(status, kind)
                with pytest.raises(error):
                    await official.messages.create(
                        model="m", max_tokens=1, messages=[{"role": "user", "content": "x"}]
                    )
            await official.close()

    asyncio.run(main())
