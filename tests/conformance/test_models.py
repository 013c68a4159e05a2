"""Every model provider of the registry keeps the contract of `Model`."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from harness_common.contracts.model import Usage
from harness_common.core.errors import HarnessError, Invalid, Limited, Permanent, Transient
from harness_common.core.message import Message, Text, dumps
from harness_common.settings import ModelSettings, Settings
from harness_worker.models.prices import load_prices
from harness_worker.models.registry import PROVIDERS, ModelRegistry
from tests.conformance.model_calls import ASK, run
from tests.fakes.openai_server import (
    Answer,
    FakeOpenAI,
    refusal,
)


def registry_of(server: FakeOpenAI, client: httpx.AsyncClient) -> ModelRegistry:
    """Make a registry whose every provider asks this server."""
    settings = Settings(openai_base_url=server.base_url, anthropic_base_url=server.base_url)
    return ModelRegistry(settings, client)


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

    run(work, provider)


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

    run(work, provider)


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

    run(work, provider)


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

    run(work, provider)


@pytest.mark.parametrize("provider", sorted(PROVIDERS))
def test_every_provider_can_be_cancelled(provider):
    async def work(server, client):
        server.default = Answer(pieces=("a", "b"), stall_after=1)
        model = registry_of(server, client).get(f"{provider}/demo")
        begun = asyncio.Event()

        async def on_delta(_: str) -> None:
            begun.set()

        options = {"script": [{"text": "x", "delay_s": 60}]}
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

    run(work, provider)


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
    ("setting", "value", "words"),
    [
        ("api_key", None, "API_KEY"),
        ("api_key", " ", "API_KEY"),
        ("api_key", "schlüssel", "API_KEY"),
        ("base_url", "localhost:8000/v1", "BASE_URL"),
    ],
)
@pytest.mark.parametrize("provider", ["anthropic", "openai"])
def test_what_is_not_configured_names_its_variable(provider, setting, value, words, monkeypatch):
    variable = f"HARNESS_{provider.upper()}"
    for name in ("API_KEY", "BASE_URL"):
        monkeypatch.delenv(f"{variable}_{name}", raising=False)

    async def work(_, client):
        settings = {} if value is None else {f"{provider}_{setting}": value}
        with pytest.raises(Permanent, match=f"{variable}_{words}") as caught:
            ModelRegistry(Settings(**settings), client).get(f"{provider}/some-model")
        assert caught.value.error_code == "MODEL_NOT_CONFIGURED"

    run(work)


def test_prices(tmp_path: Path):
    prices = load_prices()
    usage = Usage(1_000_000, 1_000_000, 400_000)
    assert prices.cost_usd("openai/gpt-5-mini", usage) == pytest.approx(
        0.6 * 0.25 + 0.4 * 0.025 + 2
    )
    assert prices.cost_usd("openai/gpt-5-mini-2025-08-07", usage) is not None
    assert prices.cost_usd("anthropic/claude-haiku-4-5-20251001", usage) == pytest.approx(
        0.6 * 1 + 0.4 * 0.1 + 5
    )
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


def test_what_is_written_to_a_cache_has_prices_of_its_own():
    """Input is all of it: read anew, read from the cache, written to it for a while or for long."""
    usage = Usage(1_000_000, 0, 400_000, cache_write_tokens=300_000, cache_write_1h_tokens=100_000)
    sonnet = 0.3 * 3 + 0.4 * 0.3 + 0.2 * 3.75 + 0.1 * 6
    assert load_prices().cost_usd("anthropic/claude-sonnet-4-6", usage) == pytest.approx(sonnet)
    plain = 0.6 * 2 + 0.4 * 0.5
    assert load_prices().cost_usd("openai/gpt-4.1", usage) == pytest.approx(plain)


def test_a_call_with_a_long_input_has_prices_of_its_own():
    prices = load_prices()
    short = prices.cost_usd("anthropic/claude-haiku-5-5", Usage(100_000, 1_000))
    assert short == pytest.approx(0.1 * 0.1 + 0.001 * 0.5)
    long = prices.cost_usd("anthropic/claude-haiku-5-5", Usage(100_001, 1_000, 50_000))
    assert long == pytest.approx((50_001 * 0.5 + 50_000 * 0.05 + 1_000 * 2.5) / 1e6)
