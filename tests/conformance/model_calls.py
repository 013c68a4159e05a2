"""How the tests of the model providers ask a model: against a fake server, once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx
import pytest

from harness_common.contracts.model import ChatRequest, ChatResult, ToolDef
from harness_common.core.errors import HarnessError
from harness_common.core.message import user
from harness_worker.models.http import shared_client
from harness_worker.models.openai_chat import OpenAIChat
from harness_worker.models.prices import load_prices
from tests.fakes.anthropic_server import FakeAnthropic
from tests.fakes.openai_server import (
    Answer,
    FakeOpenAI,
    chunk,
    sse,
)

T = TypeVar("T")
E = TypeVar("E", bound=HarnessError)

SERVER_DATE = "Sun, 29 Nov 2026 10:00:00 GMT"
DONE = b"data: [DONE]\n\n"
STOP = sse(chunk({}, finish="stop"))
KEY = "sk-verysecretvalue123456"
TOOL = ToolDef(
    "add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}
)
ASK = ChatRequest("openai/gpt-4.1", (user("Hello?"),), tools=(TOOL,))


SERVERS: dict[str, type[FakeOpenAI]] = {"anthropic": FakeAnthropic}
"""The wire that a provider speaks; the others speak Chat Completions, or none."""


def run(
    work: Callable[[FakeOpenAI, httpx.AsyncClient], Awaitable[T]], provider: str = "openai"
) -> T:
    """Do something with a fake server of a provider's wire and a client."""
    kind = SERVERS.get(provider, FakeOpenAI)

    async def main() -> T:
        async with kind() as server, shared_client() as client:
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
