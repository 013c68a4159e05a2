"""A model behind any server that speaks OpenAI Chat Completions: OpenAI itself, vLLM, llama.cpp.

Built by `registry`, called by the model step. How it is asked and what may go wrong is in
`exchange`; here is the request.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import httpx

from harness_common.contracts.model import Capabilities, ChatRequest, ChatResult, OnDelta
from harness_common.core.errors import Permanent
from harness_common.core.message import Json
from harness_worker.models.capabilities import built_in
from harness_worker.models.chat_messages import chat_messages, chat_tool_choice, chat_tools
from harness_worker.models.chat_stream import ChatAnswer
from harness_worker.models.estimate import request_tokens
from harness_worker.models.exchange import OPENAI_URL, Endpoint
from harness_worker.models.forced_tool import ask_forced, forced_by_schema
from harness_worker.models.openai_errors import Origin, read_chat_error
from harness_worker.models.options import SAMPLING, write_body
from harness_worker.models.prices import PriceTable

_OURS: Final = frozenset(
    {"model", "messages", "tools", "n", "stream", "stream_options", "keep_reasoning"}
)
"""Options that never go to the server: a request decides them itself."""
_GUIDED: Final = "guided_"
"""How vLLM's old options begin. It takes them without a word and does not do what they say."""


class OpenAIChat:
    """One model of one Chat Completions server.

    `client` is shared and stays open. `base_url` includes the version (`…/v1`). A server of one's
    own needs no key.
    """

    __slots__ = (
        "_endpoint", "_max_tokens_field", "_name", "_prices", "capabilities", "model", "provider",
        "scope",
    )  # fmt: skip

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        *,
        prices: PriceTable,
        base_url: str = OPENAI_URL,
        api_key: str = "",
        provider: str = "openai",
        capabilities: Capabilities | None = None,
    ) -> None:
        self.provider = provider
        self.model = model
        self._name = f"{provider}/{model}"
        self.capabilities = capabilities or built_in().of(self._name)
        origin = Origin(provider, model, api_key)
        self.scope = origin.scope
        self._prices = prices
        # OpenAI's reasoning models refuse the old name; other servers may not know the new one.
        official = base_url.rstrip("/") == OPENAI_URL
        self._max_tokens_field = self.capabilities.max_tokens_field or (
            "max_completion_tokens" if official else "max_tokens"
        )
        self._endpoint = Endpoint(
            client,
            base_url.rstrip("/") + "/chat/completions",
            origin,
            protocol="Chat Completions",
            find_error=read_chat_error,
        )

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Sample one answer, as `Model.chat` says; the codes of errors are those of
        `Endpoint.ask`.
        """
        forced = forced_by_schema(request, self.capabilities)
        if forced is not None:
            return await ask_forced(self._sample, request, forced, on_delta)
        return await self._sample(request, on_delta)

    async def _sample(self, request: ChatRequest, on_delta: OnDelta | None) -> ChatResult:
        body = write_body(self._name, self._body(request))
        result = await self._endpoint.ask(request, body, ChatAnswer(), on_delta)
        return replace(result, cost_usd=self._prices.cost_usd(self._name, result.usage))

    def count_tokens(self, request: ChatRequest) -> int:
        """Estimate the input tokens of a request; see `estimate`."""
        return request_tokens(request)

    async def aclose(self) -> None:
        """Do nothing: the client is shared, and closed by whoever built it."""

    def _body(self, request: ChatRequest) -> dict[str, Json]:
        can = self.capabilities
        body = {k: v for k, v in request.own_options().items() if k not in _OURS}
        if guided := next((k for k in body if k.startswith(_GUIDED)), None):
            kind = guided.removeprefix(_GUIDED)
            raise Permanent(
                f"{self._name}: vLLM takes the option {guided} and ignores it; write "
                f"structured_outputs = {{{kind} = …}} in its place",
                code="MODEL_BAD_REQUEST",
                option=guided,
            )
        if not can.temperature:
            body = {k: v for k, v in body.items() if k not in SAMPLING}
        body["model"] = self.model
        body["messages"] = chat_messages(request)
        body.setdefault(self._max_tokens_field, can.output_tokens(request.max_tokens))
        if can.tools and request.tools:
            body["tools"] = chat_tools(request.tools)
            if request.tool_choice is not None and can.tool_choice != "none":
                body["tool_choice"] = chat_tool_choice(request.tool_choice)
        if can.temperature and request.temperature is not None:
            body["temperature"] = request.temperature
        if can.json_mode and request.answer_schema is not None:
            form = {"name": "answer", "schema": request.answer_schema}
            body.setdefault("response_format", {"type": "json_schema", "json_schema": form})
        if can.streaming:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        return body
