"""The Messages API as servers that nobody here wrote speak it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from llmock.chaos import ChaosSettings
from llmock.ratelimit import LimitSettings
from llmock.scenarios import Fail, Reply, SlowFirstToken, StreamFault, ToolCall
from llmock.testing import LLMockServer

from harness_common.contracts.model import ChatRequest, ToolDef
from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.message import Message, ToolResult, user
from harness_common.settings import Settings
from harness_worker.models.anthropic import Anthropic
from harness_worker.models.http import shared_client
from harness_worker.models.registry import ModelRegistry
from tests.conformance.npm import aimock

T = TypeVar("T")
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ToolDef("get_weather", "Tell the weather of a city.", SCHEMA)
ASK = ChatRequest("claude-sonnet-4-6", (user("Say hello."),))
TOOLS = replace(ASK, messages=(user("What is the weather in Paris?"),), tools=(WEATHER,))


def with_model(url: str, work: Callable[[Anthropic], Awaitable[T]]) -> T:
    async def main() -> T:
        async with shared_client() as client:
            settings = Settings(anthropic_base_url=url, anthropic_api_key="sk-test")
            model: Any = ModelRegistry(settings, client).get("anthropic/claude-sonnet-4-6")
            return await work(model)

    return asyncio.run(main())


@pytest.fixture(scope="module")
def llmock() -> Iterator[LLMockServer]:
    with LLMockServer(chaos=ChaosSettings()) as server:
        yield server


@pytest.fixture(autouse=True)
def _forget(request: pytest.FixtureRequest) -> None:
    if "llmock" in request.fixturenames:
        request.getfixturevalue("llmock").state.reset()


def test_llmock_answers(llmock):
    async def work(model: Anthropic) -> None:
        shown: list[str] = []

        async def on_delta(text: str) -> None:
            shown.append(text)

        result = await model.chat(ASK, on_delta)
        assert result.message.text() == "".join(shown)
        assert shown
        assert (result.finish, result.model) == ("stop", "claude-sonnet-4-6")
        assert result.usage.input_tokens > 0
        assert result.usage.output_tokens > 0
        assert (result.cost_usd or 0) > 0
        assert (result.provider_request_id or "").startswith(("msg_", "req_"))

    with_model(llmock.base_url("anthropic"), work)


def test_llmock_calls_tools_and_takes_their_results(llmock):
    two = (ToolCall("get_weather", {"city": "Paris"}), ToolCall("get_weather", {"city": "Rome"}))
    llmock.state.scenarios.add(Reply(text="I look.", tool_calls=two))

    async def work(model: Anthropic) -> None:
        asked = await model.chat(TOOLS)
        assert [u.input for u in asked.message.tool_uses()] == [{"city": "Paris"}, {"city": "Rome"}]
        assert asked.finish == "tool_calls"
        uses = asked.message.tool_uses()
        results = Message("tool", tuple(ToolResult(u.id, "sunny") for u in uses))
        messages = (*TOOLS.messages, asked.message, results)
        answered = await model.chat(replace(TOOLS, messages=messages))
        assert answered.finish == "stop"
        assert answered.message.text()

    with_model(llmock.base_url("anthropic"), work)


@pytest.mark.parametrize(
    ("fault", "kind", "code"),
    [
        (Fail(529), Limited, "LIMITED"),
        (Fail(429, retry_after=3), Limited, "LIMITED"),
        (Fail(503, retry_after=2), Limited, "LIMITED"),
        (Fail(500), Transient, "MODEL_UNAVAILABLE"),
        (Fail(401), Permanent, "MODEL_AUTH"),
        (Fail(402), Permanent, "INSUFFICIENT_QUOTA"),
        (Fail(404), Permanent, "MODEL_NOT_FOUND"),
        (Fail(413), Permanent, "REQUEST_TOO_LARGE"),
        (Fail(400), Permanent, "MODEL_BAD_REQUEST"),
        (StreamFault("disconnect", after_chunks=3), Transient, "STREAM_CUT"),
        (StreamFault("truncate", after_chunks=3), Transient, "STREAM_CUT"),
        (StreamFault("malformed", after_chunks=3), Transient, "BAD_STREAM"),
        (SlowFirstToken(2), Transient, "FIRST_TOKEN_TIMEOUT"),
    ],
    ids=lambda value: getattr(value, "kind", None) or str(getattr(value, "status", "")) or None,
)
def test_llmock_fails_and_is_asked_once(llmock, fault, kind, code):
    llmock.state.scenarios.add(fault)
    patience_s = 0.3 if isinstance(fault, SlowFirstToken) else 30.0

    async def work(model: Anthropic) -> HarnessError:
        with pytest.raises(HarnessError) as caught:
            await model.chat(replace(ASK, first_token_timeout_s=patience_s))
        return caught.value

    error = with_model(llmock.base_url("anthropic"), work)
    assert (type(error), error.error_code) == (kind, code)
    if isinstance(fault, Fail) and fault.retry_after:
        assert isinstance(error, Limited)
        assert error.retry_after_s == fault.retry_after
    assert len(llmock.state.journal.records(wait=5)) == 1, "nobody tries again"


def test_llmock_keeps_a_rate_whose_headers_are_read(llmock):
    llmock.state.limiter.configure(LimitSettings(rpm=2, context_window=500))

    async def work(model: Anthropic) -> None:
        first = await model.chat(ASK)
        assert first.rate is not None
        assert not first.rate.used_up
        second = await model.chat(ASK)
        assert second.rate is not None
        assert second.rate.used_up
        with pytest.raises(Limited) as caught:
            await model.chat(ASK)
        assert 25 <= (caught.value.retry_after_s or 0) <= 31
        llmock.state.limiter.reset()
        with pytest.raises(Permanent) as long:
            await model.chat(replace(ASK, messages=(user("word " * 5_000),)))
        assert long.value.error_code == "CONTEXT_OVERFLOW"

    try:
        with_model(llmock.base_url("anthropic"), work)
    finally:
        llmock.state.limiter.configure(LimitSettings())


# ── aimock: the same API by other hands, in another language ─────────────────────────────────────

FIXTURES = {
    "fixtures": [
        {"match": {"userMessage": "hello"}, "response": {"content": "Hello! What can I do?"}},
        {
            "match": {"userMessage": "think"},
            "response": {"content": "42", "reasoning": "canary-7431: six times seven"},
        },
        {
            "match": {"userMessage": "weather", "hasToolResult": False},
            "response": {
                "toolCalls": [
                    {"name": "get_weather", "arguments": {"city": "Paris"}},
                    {"name": "get_weather", "arguments": {"city": "Rome"}},
                ]
            },
        },
        {"match": {"userMessage": "weather"}, "response": {"content": "Sunny."}},
        {
            "match": {"userMessage": "overload"},
            "response": {"error": {"message": "no", "type": "overloaded_error"}, "status": 529},
        },
        {
            "match": {"userMessage": "cut"},
            "response": {"content": "a long answer that never ends " * 20},
            "truncateAfterChunks": 3,
        },
    ]
}


@contextmanager
def running(command: list[str], port: int) -> Iterator[str]:
    """Run a server until the block ends."""
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
    )
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"{url}/health", timeout=1)
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline, "the server did not start"
                assert process.poll() is None, "the server ended"
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(10)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@pytest.mark.nightly
def test_aimock_speaks_the_same(tmp_path: Path):
    try:
        command = aimock("-f", str(tmp_path / "all.json"), "--log-level", "silent")
    except (subprocess.CalledProcessError, OSError) as error:
        pytest.skip(f"aimock cannot be installed here: {error}")
    (tmp_path / "all.json").write_text(json.dumps(FIXTURES))

    async def work(model: Anthropic) -> None:
        def about(words: str, **more: Any) -> ChatRequest:
            return replace(ASK, messages=(user(words),), **more)

        said = await model.chat(about("hello"))
        assert (said.message.text(), said.finish) == ("Hello! What can I do?", "stop")
        assert said.usage.output_tokens > 0
        weather = about("weather", tools=(WEATHER,))
        asked = await model.chat(weather)
        uses = asked.message.tool_uses()
        assert [u.input for u in uses] == [{"city": "Paris"}, {"city": "Rome"}]
        assert len({u.id for u in uses}) == 2
        results = Message("tool", tuple(ToolResult(u.id, "sunny") for u in uses))
        answered = await model.chat(
            replace(weather, messages=(*weather.messages, asked.message, results))
        )
        assert answered.message.text() == "Sunny."
        hidden = await model.chat(about("think"))
        assert hidden.message.text() == "42"
        assert "canary" not in str(hidden.message)
        kept = await model.chat(about("think", options={"keep_reasoning": True}))
        assert "canary" in str(kept.message.extra)
        with pytest.raises(Limited):
            await model.chat(about("overload"))
        with pytest.raises(Transient) as caught:
            await model.chat(about("cut"))
        assert caught.value.error_code in {"STREAM_CUT", "MODEL_CONNECTION"}, "it may say nothing"

    port = free_port()
    with running([*command, "-p", str(port)], port) as url:
        with_model(url, work)
