"""A model behind any server that speaks Anthropic's Messages API.

Built by `registry`, called through `steps/asking.py`. It asks once and never again: every failure
is classified and raised, and only the scheduler waits.

The API has two generations. From version 2026-10-21 the key goes as `Authorization: Bearer`, and
`temperature`, `top_p` and `top_k` are refused, whatever their value; before, it goes as `x-api-key`
and models older than Opus 4.7 take them. `Capabilities.temperature` says which.

Hidden reasoning is not asked for in a readable form, and not kept if it comes in one, unless the
agent's model option `keep_reasoning` is true: what is kept is stored with the message. Without it
the server is asked to send signatures alone (`display: omitted`), which it needs back and nobody
can read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import httpx

from harness_common.contracts.model import (
    Capabilities,
    ChatRequest,
    ChatResult,
    OnDelta,
    Usage,
)
from harness_common.core.errors import HarnessError, Permanent
from harness_common.core.message import Json
from harness_worker.models.anthropic_errors import (
    body_failure,
    event_failure,
    rate_from,
    read_error,
)
from harness_worker.models.anthropic_messages import Written, cached, write
from harness_worker.models.anthropic_stream import PROVIDER, MessagesAnswer
from harness_worker.models.estimate import message_tokens, request_tokens
from harness_worker.models.json_out import json_bytes
from harness_worker.models.openai_errors import Origin
from harness_worker.models.prices import PriceTable
from harness_worker.models.sse_call import SseCall

ANTHROPIC_URL: Final = "https://api.anthropic.com"
NO_SAMPLING_FROM: Final = "2026-10-21"
"""The first version that takes a Bearer key and no sampling parameters."""

_OURS: Final = frozenset(
    {
        *("model", "messages", "system", "tools", "stream", "script", "attempt"),
        *("betas", "cache", "keep_reasoning"),
    }
)
"""Options that never go into the body: what a request decides itself, what is ours or a header."""
_SAMPLING: Final = frozenset({"temperature", "top_p", "top_k"})
_KNOWN: Final = (
    # prefix, context window in tokens, takes sampling parameters before 2026-10-21
    ("claude-haiku-4-5", 200_000, True),
    ("claude-opus-4-5", 200_000, True),
    ("claude-sonnet-4-5", 200_000, True),
    ("claude-opus-4-6", 1_000_000, True),
    ("claude-sonnet-4-6", 1_000_000, True),
    ("claude-3", 200_000, True),
    ("claude-sonnet-4-0", 200_000, True),
    ("claude-sonnet-4-2", 200_000, True),
    ("claude-opus-4-0", 200_000, True),
    ("claude-opus-4-1", 200_000, True),
    ("claude-opus-4-2", 200_000, True),
    ("claude-", 1_000_000, False),
)


def capabilities_of(model: str, version: str) -> Capabilities:
    """Return what a model is known to accept under a version of the API, by the beginning of its
    name; other names are those of servers that imitate it.
    """
    found = next((k for k in _KNOWN if model.startswith(k[0])), ("", 200_000, True))
    return Capabilities(
        temperature=found[2] and version < NO_SAMPLING_FROM, context_window_tokens=found[1]
    )


class Anthropic:
    """One model of one server of the Messages API.

    `client` is shared and stays open. `base_url` may include `/v1`. A server of one's own needs no
    key.
    """

    __slots__ = ("_client", "_headers", "_prices", "_talk", "_url", "capabilities", "model",
                 "provider", "scope")  # fmt: skip

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        *,
        prices: PriceTable,
        version: str,
        base_url: str = ANTHROPIC_URL,
        api_key: str = "",
        capabilities: Capabilities | None = None,
    ) -> None:
        self.provider = PROVIDER
        self.model = model
        self.capabilities = capabilities or capabilities_of(model, version)
        self._client = client
        origin = Origin(PROVIDER, model, api_key)
        self.scope = origin.scope
        self._talk = _Talk(origin)
        self._prices = prices
        self._url = httpx.URL(base_url.rstrip("/").removesuffix("/v1") + "/v1/messages")
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # a compressor would hold tokens back
            "user-agent": "harness",
            "anthropic-version": version,
        }
        if api_key and version < NO_SAMPLING_FROM:
            self._headers["x-api-key"] = api_key
        elif api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Sample one answer, as `Model.chat` says. `on_delta` must not raise.

        Codes of `Transient`: FIRST_TOKEN_TIMEOUT, MODEL_TIMEOUT, MODEL_CONNECTION, STREAM_CUT,
        BAD_STREAM, MODEL_UNAVAILABLE. Of `Permanent`: CONTEXT_OVERFLOW, INSUFFICIENT_QUOTA,
        REQUEST_TOO_LARGE, MODEL_AUTH, MODEL_NOT_FOUND, MODEL_BAD_REQUEST, MODEL_NO_RETRY,
        ANSWER_TOO_LARGE.
        """
        body, prefix = self._body(request)
        answer = MessagesAnswer()
        call = SseCall(self._client, self._talk, answer, request, on_delta)
        heard = await call.run(self._url, self._with_betas(request.options), body)
        message = answer.message(
            model=self.model,
            prefix=prefix,
            keep_reasoning=request.options.get("keep_reasoning") is True,
        )
        usage = answer.usage() or Usage(
            request_tokens(request), message_tokens(message), estimated=True
        )
        headers, first_s = heard.headers, heard.first_token_s
        return ChatResult(
            message=message,
            usage=usage,
            finish="tool_calls" if message.has_tool_uses() else answer.finish(),
            model=answer.model or self.model,
            provider_request_id=headers.get("request-id") or answer.id or None,
            cost_usd=self._prices.cost_usd(self._talk.name, usage),
            first_token_ms=None if first_s is None else first_s * 1000,
            rate=rate_from(headers),
        )

    def count_tokens(self, request: ChatRequest) -> int:
        """Estimate the input tokens of a request; see `estimate`."""
        return request_tokens(request)

    async def aclose(self) -> None:
        """Do nothing: the client is shared, and closed by whoever built it."""

    def _with_betas(self, options: Mapping[str, Json]) -> dict[str, str]:
        betas = options.get("betas")
        if not isinstance(betas, list) or not betas:
            return self._headers
        return {**self._headers, "anthropic-beta": ",".join(map(str, betas))}

    def _body(self, request: ChatRequest) -> tuple[bytes, str]:
        """Return the body, and the digest of the conversation in it."""
        tools = request.tools if self.capabilities.tools else ()
        try:
            written = write(request.system, tools, request.messages, self.model)
            return json_bytes(self._fields(request, written)), written.prefix
        except (TypeError, ValueError) as error:
            raise Permanent(
                f"{self._talk.name}: the request cannot be written as JSON: {error}",
                code="MODEL_BAD_REQUEST",
            ) from None

    def _fields(self, request: ChatRequest, written: Written) -> dict[str, Any]:
        options = request.options
        body: dict[str, Any] = {
            key: value
            for key, value in options.items()
            if key not in _OURS | _SAMPLING and value is not None
        }
        body["model"] = self.model
        body.setdefault("max_tokens", self.capabilities.output_tokens(request.max_tokens))
        choice = _tool_choice(request.tool_choice) if written.tools else None
        if choice is not None:
            body["tool_choice"] = choice
        _set_thinking(body, written, keep=options.get("keep_reasoning") is True)
        # Reasoning models refuse another temperature than theirs while they reason.
        if self.capabilities.temperature and not _thinks(body):
            given = {"temperature": request.temperature, **options}
            body |= {k: v for k in _SAMPLING if (v := given.get(k)) is not None}
        mark = _mark(options.get("cache", True))
        system, tools, messages = (
            cached(written, mark) if mark else (written.system, written.tools, written.messages)
        )
        body |= {"system": system} if system else {}
        body |= {"tools": tools} if tools else {}
        body["messages"] = messages
        if self.capabilities.streaming:
            body["stream"] = True
        return body


class _Talk:
    """How this provider's server speaks (`sse_call.Dialect`)."""

    __slots__ = ("_origin", "base_url_setting", "last", "name", "protocol", "secret")

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self.name = f"{origin.provider}/{origin.model}"
        self.secret = origin.secret
        self.base_url_setting = "HARNESS_ANTHROPIC_BASE_URL"
        self.protocol = "the Messages API"
        self.last = b""

    def refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> HarnessError:
        """Classify an answer of an error status."""
        return body_failure(status, body, headers, self._origin)

    def event_error(self, event: Json) -> HarnessError | None:
        """Return the error that an event or a whole answer is; None when it is none."""
        found = read_error(event)
        return None if found is None else event_failure(*found, self._origin)


def _tool_choice(choice: str | None) -> Json:
    """Write whether the model may, must or must not call a tool; None leaves it to the model."""
    if choice is None:
        return None
    kind = {"auto": "auto", "none": "none", "required": "any"}.get(choice)
    return {"type": kind} if kind else {"type": "tool", "name": choice}


def _thinks(body: Mapping[str, Json]) -> bool:
    thinking = body.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") != "disabled"


def _set_thinking(body: dict[str, Any], written: Written, *, keep: bool) -> None:
    """Ask for reasoning as the agent does, and for signatures alone unless it is to be kept.

    With a token budget (`enabled`) the API wants the reasoning back that led to the calls being
    answered. Where that was dropped, and where a tool is forced, this request does without.
    """
    if not _thinks(body):
        return
    thinking = body["thinking"]
    forced = (body.get("tool_choice") or {}).get("type") in {"any", "tool"}
    if forced or (thinking.get("type") == "enabled" and written.loop_without_reasoning):
        del body["thinking"]
    elif not keep and thinking.get("type") in {"enabled", "adaptive"}:
        body["thinking"] = {"display": "omitted", **thinking}


def _mark(cache: Json) -> Json:
    """Return the mark for prompt caching: for five minutes, as long as the option `cache` says, or
    none.
    """
    if cache is False or cache is None:
        return None
    return {"type": "ephemeral"} if cache is True else {"type": "ephemeral", "ttl": str(cache)}
