"""The providers of the OpenAI family against servers that nobody here wrote.

llmock runs in every test run; the others are nightly, because they are large.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from harness_common.contracts.model import ChatRequest, ChatResult, Model, ToolDef
from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.message import Message, ToolResult, dumps, user
from harness_common.settings import ModelSettings, Settings
from harness_worker.models.http import shared_client
from harness_worker.models.registry import ModelRegistry
from tests.conformance import real_servers

PROVIDERS = ("openai", "openai-responses")
both = pytest.mark.parametrize("provider", PROVIDERS)

WEATHER = ToolDef(
    "get_weather",
    "Get the current weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
ASK = ChatRequest("m", (user("What is the weather in Paris?"),), max_tokens=64)


def with_model(
    base_url: str,
    name: str,
    work: Callable[[Model], Awaitable[Any]],
    *,
    key: str = "sk-none",
    capabilities: Path | None = None,
) -> Any:
    async def main() -> Any:
        settings = Settings(
            openai_base_url=base_url,
            openai_api_key=key,
            model=ModelSettings(capabilities=capabilities),
        )
        async with shared_client() as client:
            return await work(ModelRegistry(settings, client).get(name))

    return asyncio.run(main())


def answer(base_url: str, name: str, request: ChatRequest, **more: Any) -> ChatResult:
    """Ask once; what was shown must be what was said."""
    shown: list[str] = []

    async def on_delta(text: str) -> None:
        shown.append(text)

    async def work(model: Model) -> ChatResult:
        return await model.chat(request, on_delta)

    result: ChatResult = with_model(base_url, name, work, **more)
    assert "".join(shown) in {result.message.text(), ""}
    assert "".join(shown) or not result.message.text()
    return result


def refused(base_url: str, name: str, request: ChatRequest, **more: Any) -> HarnessError:
    with pytest.raises(HarnessError) as caught:
        answer(base_url, name, request, **more)
    return caught.value


def sdk_says(base_url: str, provider: str, model: str, ask: str = "") -> tuple[Any, ...]:
    """Return text, calls, input and output tokens as the official SDK reads the same answer."""

    wanted = ask or ASK.messages[0].text()

    async def main() -> tuple[Any, ...]:
        async with openai.AsyncOpenAI(base_url=base_url, api_key="sk-none", max_retries=0) as sdk:
            if provider == "openai-responses":
                response = await sdk.responses.create(
                    model=model, input=wanted, max_output_tokens=64
                )
                assert response.usage is not None
                calls = [i.name for i in response.output if i.type == "function_call"]
                usage = response.usage
                return response.output_text, calls, usage.input_tokens, usage.output_tokens
            completion = await sdk.chat.completions.create(
                model=model, messages=[{"role": "user", "content": wanted}], max_tokens=64
            )
            assert completion.usage is not None
            message, used = completion.choices[0].message, completion.usage
            calls = [c.function.name for c in message.tool_calls or () if c.type == "function"]
            return message.content or "", calls, used.prompt_tokens, used.completion_tokens

    return asyncio.run(main())


# llmock


@pytest.fixture(scope="module")
def llmock() -> Iterator[str]:
    with real_servers.llmock("--context-window", "2000") as url:
        yield url


def scenario(base_url: str, *behaviors: dict[str, Any]) -> None:
    root = base_url.removesuffix("/v1")
    httpx.post(f"{root}/_llmock/reset").raise_for_status()
    if behaviors:
        body = {"behaviors": list(behaviors)}
        httpx.post(f"{root}/_llmock/scenario", json=body).raise_for_status()


@both
def test_llmock_answers_as_the_official_sdk_reads_it(llmock, provider):
    scenario(llmock)
    result = answer(llmock, f"{provider}/gpt-4o", ASK)
    usage = result.usage
    assert not usage.estimated
    assert result.finish == "stop"
    assert (result.message.text(), [], usage.input_tokens, usage.output_tokens) == sdk_says(
        llmock, provider, "gpt-4o"
    )


@both
@pytest.mark.parametrize("choice", [None, "required", "get_weather"])
def test_llmock_calls_a_tool_and_goes_on_after_its_result(llmock, provider, choice):
    scenario(llmock)
    request = replace(ASK, tools=(WEATHER,), tool_choice=choice)
    result = answer(llmock, f"{provider}/gpt-4o", request)
    (use,) = result.message.tool_uses()
    assert (use.name, set(use.input), use.raw) == ("get_weather", {"city"}, None)
    assert result.finish == "tool_calls"
    told = Message("tool", (ToolResult(use.id, "21 C"),))
    messages = (*ASK.messages, result.message, told)
    last = answer(llmock, f"{provider}/gpt-4o", replace(ASK, messages=messages, tools=(WEATHER,)))
    assert last.message.text()
    assert not last.message.tool_uses()


@both
@pytest.mark.parametrize(
    ("behavior", "kind", "code"),
    [
        ({"type": "fail", "status": 429, "retry_after": 2}, Limited, "LIMITED"),
        ({"type": "fail", "status": 503, "retry_after": 2}, Limited, "LIMITED"),
        ({"type": "fail", "status": 500}, Transient, "MODEL_UNAVAILABLE"),
        ({"type": "fail", "status": 401}, Permanent, "MODEL_AUTH"),
        ({"type": "fail", "status": 400}, Permanent, "MODEL_BAD_REQUEST"),
        (
            {"type": "stream_fault", "kind": "truncate", "after_chunks": 3},
            Transient,
            "STREAM_CUT",
        ),
        (
            {"type": "stream_fault", "kind": "disconnect", "after_chunks": 3},
            Transient,
            "STREAM_CUT",
        ),
        (
            {"type": "stream_fault", "kind": "malformed", "after_chunks": 3},
            Transient,
            "BAD_STREAM",
        ),
    ],
)
def test_llmock_breaks_in_every_way(llmock, provider, behavior, kind, code):
    scenario(llmock, behavior)
    error = refused(llmock, f"{provider}/gpt-4o", ASK)
    assert type(error) is kind
    assert error.error_code == code
    if isinstance(error, Limited):
        assert error.retry_after_s == 2


@both
def test_llmock_has_a_window(llmock, provider):
    scenario(llmock)
    long = replace(ASK, messages=(user("word " * 4_000),))
    assert refused(llmock, f"{provider}/gpt-4o", long).error_code == "CONTEXT_OVERFLOW"


@both
def test_llmock_calls_with_broken_arguments(llmock, provider):
    scenario(llmock, {"type": "tool_fault", "kind": "malformed_arguments"})
    result = answer(llmock, f"{provider}/gpt-4o", replace(ASK, tools=(WEATHER,)))
    (use,) = result.message.tool_uses()
    assert use.input == {}
    assert use.raw


# aimock (nightly)


@pytest.fixture(scope="module")
def aimock() -> Iterator[str]:
    with real_servers.aimock(Path(__file__).parent / "aimock_fixtures.json") as url:
        yield url


def asks(text: str, **more: Any) -> ChatRequest:
    return ChatRequest("m", (user(text),), max_tokens=64, **more)


@pytest.mark.nightly
@both
def test_aimock_answers_as_the_official_sdk_reads_it(aimock, provider):
    result = answer(aimock, f"{provider}/gpt-4o", asks("hello"))
    text, calls, _, _ = sdk_says(aimock, provider, "gpt-4o", ask="hello")
    assert (result.message.text(), result.finish, calls) == (text, "stop", [])
    assert "你好" in text


@pytest.mark.nightly
@both
def test_aimock_calls_two_tools_in_one_answer(aimock, provider):
    request = asks("weather", tools=(WEATHER,))
    result = answer(aimock, f"{provider}/gpt-4o", request)
    uses = result.message.tool_uses()
    assert [u.input for u in uses] == [{"city": "Paris"}, {"city": "Zürich ☃"}]
    assert len({u.id for u in uses}) == 2
    assert (result.message.text(), result.finish) == ("I look at both.", "tool_calls")
    told = Message("tool", tuple(ToolResult(u.id, "x") for u in uses))
    messages = (*request.messages, result.message, told)
    last = answer(aimock, f"{provider}/gpt-4o", replace(request, messages=messages))
    assert last.message.text() == "21 °C in Paris, 3 °C in Zürich."


@pytest.mark.nightly
@both
def test_aimock_thinks_and_nothing_of_it_is_kept(aimock, provider):
    result = answer(aimock, f"{provider}/gpt-5-mini", asks("think"))
    assert result.message.text() == "42"
    assert "hidden words" not in dumps(result.message)


@pytest.mark.nightly
@both
@pytest.mark.parametrize(("ask", "wait_s"), [("limit", 7), ("overload", None)])
def test_aimock_limits(aimock, provider, ask, wait_s):
    error = refused(aimock, f"{provider}/gpt-4o", asks(ask))
    assert isinstance(error, Limited)
    assert wait_s in {error.retry_after_s, None}


@pytest.mark.nightly
@both
@pytest.mark.parametrize(
    ("chaos", "codes"),
    [
        ("--chaos-drop", {"MODEL_UNAVAILABLE"}),
        ("--chaos-malformed", {"BAD_STREAM"}),
        ("--chaos-disconnect", {"MODEL_CONNECTION", "STREAM_CUT"}),
    ],
)
def test_aimock_in_chaos(provider, chaos, codes):
    fixtures = Path(__file__).parent / "aimock_fixtures.json"
    with real_servers.aimock(fixtures, chaos, "1.0") as url:
        error = refused(url, f"{provider}/gpt-4o", asks("hello"))
    assert isinstance(error, Transient)
    assert error.error_code in codes


# litellm (nightly): Chat Completions only, because its mocks fail every streamed Responses call

LITELLM = """
model_list:
  - {model_name: ok, litellm_params: {model: openai/ok, api_key: none, mock_response: "Hello from litellm."}}
  - {model_name: limited, litellm_params: {model: openai/x, api_key: none, mock_response: litellm.RateLimitError}}
  - {model_name: long, litellm_params: {model: openai/x, api_key: none, mock_response: litellm.ContextWindowExceededError}}
  - {model_name: broken, litellm_params: {model: openai/x, api_key: none, mock_response: litellm.InternalServerError}}
litellm_settings: {num_retries: 0}
router_settings: {num_retries: 0, disable_cooldowns: true}
"""  # noqa: E501


@pytest.fixture(scope="module")
def litellm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    config = tmp_path_factory.mktemp("litellm") / "config.yaml"
    config.write_text(LITELLM)
    with real_servers.litellm(config) as url:
        yield url


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_litellm_answers(litellm):
    result = answer(litellm, "openai/ok", asks("hello"), key=real_servers.LITELLM_KEY)
    assert (result.message.text(), result.finish) == ("Hello from litellm.", "stop")


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [
        ("limited", Limited, "LIMITED"),
        ("long", Permanent, "CONTEXT_OVERFLOW"),
        ("broken", Transient, "MODEL_UNAVAILABLE"),
    ],
)
def test_litellm_refuses(litellm, name, kind, code):
    error = refused(litellm, f"openai/{name}", asks("hello"), key=real_servers.LITELLM_KEY)
    assert (type(error), error.error_code) == (kind, code)


# llama.cpp with a real small model (nightly); whole runs of it: tests/worker/test_small_model.py


@pytest.fixture(scope="module")
def llama() -> Iterator[str]:
    with real_servers.llama_cpp() as url:
        yield url


@pytest.fixture
def smol(tmp_path: Path) -> Path:
    """Say what the small model accepts."""
    own = tmp_path / "capabilities.json"
    entry = {"tool_choice": "schema", "context_window_tokens": 2048}
    own.write_text(json.dumps({"models": {f"{p}/smol": entry for p in PROVIDERS}}))
    return own


@pytest.mark.nightly
@pytest.mark.timeout(600)
@both
def test_a_small_model_speaks(llama, provider, smol):
    request = replace(asks("Say hello."), max_tokens=12, temperature=0.0, total_timeout_s=200)
    result = answer(llama, f"{provider}/smol", request, capabilities=smol)
    assert result.message.text()
    assert result.usage.output_tokens <= 12
    assert not result.usage.estimated


@pytest.mark.nightly
@pytest.mark.timeout(600)
@both
def test_a_small_model_calls_the_tool_that_is_forced(llama, provider, smol):
    request = replace(
        asks("What is the weather in Paris?"),
        tools=(WEATHER,), tool_choice="get_weather", temperature=0.0, total_timeout_s=200,
    )  # fmt: skip
    result = answer(llama, f"{provider}/smol", request, capabilities=smol)
    (use,) = result.message.tool_uses()
    assert (use.name, set(use.input), result.finish) == ("get_weather", {"city"}, "tool_calls")
    told = Message("tool", (ToolResult(use.id, "21 C"),))
    messages = (*request.messages, result.message, told)
    after = replace(request, messages=messages, tool_choice="none", max_tokens=12)
    last = answer(llama, f"{provider}/smol", after, capabilities=smol)
    assert last.message.text()


@pytest.mark.nightly
@pytest.mark.timeout(600)
@both
def test_a_small_model_has_a_small_window(llama, provider, smol):
    error = refused(llama, f"{provider}/smol", asks("word " * 4_000), capabilities=smol)
    assert error.error_code == "CONTEXT_OVERFLOW"
