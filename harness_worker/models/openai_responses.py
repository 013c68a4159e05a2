"""A model behind OpenAI's Responses API, or a server that speaks it.

Built by `registry`, called by the model step. The server keeps nothing: each request carries the
conversation, and reasoning comes back encrypted and is sent again with it. How it is asked and what
may go wrong is in `exchange`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import httpx

from harness_common.contracts.model import Capabilities, ChatRequest, ChatResult, OnDelta
from harness_common.core.errors import Permanent
from harness_common.core.message import Json
from harness_worker.models.capabilities import built_in
from harness_worker.models.estimate import request_tokens
from harness_worker.models.exchange import OPENAI_URL, Endpoint
from harness_worker.models.forced_tool import ask_forced, forced_by_schema
from harness_worker.models.openai_errors import REASONING_REFUSED, Origin
from harness_worker.models.options import SAMPLING, write_body
from harness_worker.models.prices import PriceTable
from harness_worker.models.responses_input import (
    PROVIDER,
    has_reasoning,
    input_items,
    response_tool_choice,
    response_tools,
)
from harness_worker.models.responses_stream import ResponsesAnswer, read_response_error

_OURS: Final = frozenset(
    {
        "model", "input", "instructions", "tools", "stream", "stream_options", "store",
        "background", "conversation", "previous_response_id", "keep_reasoning", "max_tokens",
        "max_completion_tokens",
    }
)  # fmt: skip
"""Options that never go to the server: a request decides them itself, or they would have the server
keep the conversation.
"""
_ENCRYPTED: Final = "reasoning.encrypted_content"


class OpenAIResponses:
    """One model of one server of the Responses API.

    `client` is shared and stays open. `base_url` includes the version (`…/v1`). Its prices are
    those of the same model of `openai`.
    """

    __slots__ = (
        "_endpoint", "_name", "_prices", "capabilities", "model", "provider", "scope",
    )  # fmt: skip

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        *,
        prices: PriceTable,
        base_url: str = OPENAI_URL,
        api_key: str = "",
        provider: str = PROVIDER,
        capabilities: Capabilities | None = None,
    ) -> None:
        self.provider = provider
        self.model = model
        self._name = f"{provider}/{model}"
        self.capabilities = capabilities or built_in().of(self._name)
        origin = Origin(provider, model, api_key)
        self.scope = origin.scope
        self._prices = prices
        self._endpoint = Endpoint(
            client,
            base_url.rstrip("/") + "/responses",
            origin,
            protocol="the Responses API",
            find_error=read_response_error,
        )

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Sample one answer, as `Model.chat` says; the codes of errors are those of
        `Endpoint.ask`.

        Where the server cannot read its own reasoning any more (a key was changed, it is too old)
        the same is asked at once without it.
        """
        forced = forced_by_schema(request, self.capabilities)
        if forced is not None:
            return await ask_forced(self._sample, request, forced, on_delta)
        return await self._sample(request, on_delta)

    async def _sample(self, request: ChatRequest, on_delta: OnDelta | None) -> ChatResult:
        items = input_items(request, self.model)
        try:
            return await self._ask(request, items, on_delta)
        except Permanent as error:
            if error.error_code != REASONING_REFUSED or not has_reasoning(items):
                raise
        return await self._ask(request, input_items(request, self.model, reasoning=False), on_delta)

    def count_tokens(self, request: ChatRequest) -> int:
        """Estimate the input tokens of a request; see `estimate`."""
        return request_tokens(request)

    async def aclose(self) -> None:
        """Do nothing: the client is shared, and closed by whoever built it."""

    async def _ask(
        self, request: ChatRequest, items: list[Json], on_delta: OnDelta | None
    ) -> ChatResult:
        body = write_body(self._name, self._body(request, items))
        answer = ResponsesAnswer(
            self.model, keep_text=request.options.get("keep_reasoning") is True
        )
        result = await self._endpoint.ask(request, body, answer, on_delta)
        cost = self._prices.cost_usd(self._name, result.usage)
        if cost is None:
            cost = self._prices.cost_usd(f"openai/{self.model}", result.usage)
        return replace(result, cost_usd=cost)

    def _body(self, request: ChatRequest, items: list[Json]) -> dict[str, Json]:
        can = self.capabilities
        options = request.own_options()
        own = options.get("text")
        is_formed = isinstance(own, dict) and "format" in own
        if can.json_mode and request.answer_schema is not None and not is_formed:
            form = {"name": "answer", "schema": request.answer_schema}
            options.setdefault("response_format", {"type": "json_schema", "json_schema": form})
        body = _options(options)
        if not can.temperature:
            body = {k: v for k, v in body.items() if k not in SAMPLING}
        body["model"] = self.model
        body["input"] = items
        body["store"] = False
        if request.system:
            body["instructions"] = request.system
        body.setdefault("max_output_tokens", can.output_tokens(request.max_tokens))
        if can.tools and request.tools:
            body["tools"] = response_tools(request.tools)
            if request.tool_choice is not None and can.tool_choice != "none":
                body["tool_choice"] = response_tool_choice(request.tool_choice)
        if can.temperature and request.temperature is not None:
            body["temperature"] = request.temperature
        if can.reasoning:  # others answer 400
            asked = body.get("include")
            include = list(asked) if isinstance(asked, list) else []
            body["include"] = include if _ENCRYPTED in include else [*include, _ENCRYPTED]
        if can.streaming:
            body["stream"] = True
        return body


def _options(options: Mapping[str, Json]) -> dict[str, Json]:
    """Write an agent's options; those that Chat Completions calls otherwise are translated, so that
    an agent can change its provider.
    """
    body = {k: v for k, v in options.items() if k not in _OURS}
    form = body.pop("response_format", None)
    if isinstance(form, dict):
        if isinstance(inner := form.get("json_schema"), dict):
            form = {"type": "json_schema", **inner}
        text = body.get("text")
        body["text"] = {**(text if isinstance(text, dict) else {}), "format": form}
    effort = body.pop("reasoning_effort", None)
    if effort is not None:
        reasoning = body.get("reasoning")
        body["reasoning"] = {
            "effort": effort,
            **(reasoning if isinstance(reasoning, dict) else {}),
        }
    return body
