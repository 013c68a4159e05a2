"""A model behind any server that speaks OpenAI Chat Completions: OpenAI itself, vLLM, llama.cpp.

Built by `registry`, called by the model step. It asks once and never again: every failure is
classified and raised, and only the scheduler waits. A call holds little: one request body, one
response, the text so far.
"""

from __future__ import annotations

import asyncio
from typing import Final

import httpx
import orjson

from harness_common.contracts.model import (
    Capabilities,
    ChatRequest,
    ChatResult,
    OnDelta,
    Usage,
)
from harness_common.core.errors import HarnessError, Permanent, Transient
from harness_common.core.message import Json
from harness_common.core.throttle import Rate
from harness_worker.models.chat_messages import chat_messages, chat_tools
from harness_worker.models.chat_stream import ChatAnswer
from harness_worker.models.estimate import message_tokens, request_tokens
from harness_worker.models.http import TRANSPORT_ERRORS
from harness_worker.models.json_out import json_bytes
from harness_worker.models.openai_errors import (
    Origin,
    event_failure,
    failure,
    read_body,
    read_error,
)
from harness_worker.models.prices import PriceTable
from harness_worker.models.redact import redact
from harness_worker.models.retry_after import rate_of
from harness_worker.models.sse import SseDecoder

OPENAI_URL: Final = "https://api.openai.com/v1"
DRAIN_S: Final = 0.5
"""How long we wait after `[DONE]` for the end of the body, which makes the connection fit for the
next call.
"""
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_ANSWER_CHARS: Final = 8 * 1024 * 1024

_OURS: Final = frozenset(
    {"model", "messages", "tools", "n", "stream", "stream_options", "script", "attempt"}
)
"""Options that never go to the server: what a request decides itself, and what belongs to the
scripted model.
"""
_SAMPLING: Final = frozenset({"temperature", "top_p", "top_k", "min_p"})

_KNOWN: Final = (
    # prefix, context window in tokens, accepts a temperature (reasoning models answer it with 400)
    ("gpt-5", 400_000, False),
    ("gpt-4.1", 1_047_576, True),
    ("gpt-4o", 128_000, True),
    ("o1", 200_000, False),
    ("o3", 200_000, False),
    ("o4", 200_000, False),
)


def capabilities_of(model: str) -> Capabilities:
    """Return what a model is known to accept, by the beginning of its name; the defaults for all
    others.
    """
    for prefix, window, temperature in _KNOWN:
        if model.startswith(prefix):
            return Capabilities(
                json_mode=True, context_window_tokens=window, temperature=temperature
            )
    return Capabilities(json_mode=True)


class OpenAIChat:
    """One model of one Chat Completions server.

    `client` is shared and stays open. `base_url` includes the version (`…/v1`). A server of one's
    own needs no key.
    """

    __slots__ = (
        "_client", "_headers", "_max_tokens_field", "_name", "_origin", "_prices", "_url",
        "capabilities", "model", "provider", "scope",
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
        self.capabilities = capabilities or capabilities_of(model)
        self._client = client
        self._name = f"{provider}/{model}"
        self._origin = Origin(provider, model, api_key)
        self.scope = self._origin.scope
        self._prices = prices
        self._url = httpx.URL(base_url.rstrip("/") + "/chat/completions")
        # OpenAI's reasoning models refuse the old name; other servers may not know the new one.
        official = base_url.rstrip("/") == OPENAI_URL
        self._max_tokens_field = "max_completion_tokens" if official else "max_tokens"
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # a compressor would hold tokens back
            "user-agent": "harness",
        }
        if api_key:
            self._headers["authorization"] = f"Bearer {api_key}"

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatResult:
        """Sample one answer, as `Model.chat` says. `on_delta` must not raise.

        Codes of `Transient`: FIRST_TOKEN_TIMEOUT, MODEL_TIMEOUT, MODEL_CONNECTION, STREAM_CUT,
        BAD_STREAM, MODEL_UNAVAILABLE. Of `Permanent`: CONTEXT_OVERFLOW, INSUFFICIENT_QUOTA,
        REQUEST_TOO_LARGE, MODEL_AUTH, MODEL_NOT_FOUND, MODEL_BAD_REQUEST, MODEL_REFUSED,
        MODEL_NO_RETRY, ANSWER_TOO_LARGE.
        """
        body = self._body(request)
        call = _Call(request, on_delta)
        # One timer: it stands at the first token, then moves to the end of the whole call.
        deadline = asyncio.timeout(min(request.first_token_timeout_s, request.total_timeout_s))
        try:
            async with deadline:
                await self._ask(call, body, deadline)
        except TRANSPORT_ERRORS as error:
            # After the finish only usage and the end of the body can be lost: the answer is whole.
            if not call.answer.complete:
                raise self._broken(call, deadline.expired(), error) from None
        if not call.answer.complete:
            raise Transient(
                f"{self._name}: the stream ended before the answer did", code="STREAM_CUT"
            )
        return self._result(call)

    def count_tokens(self, request: ChatRequest) -> int:
        """Estimate the input tokens of a request; see `estimate`."""
        return request_tokens(request)

    async def aclose(self) -> None:
        """Do nothing: the client is shared, and closed by whoever built it."""

    def _body(self, request: ChatRequest) -> bytes:
        can = self.capabilities
        body: dict[str, Json] = {
            key: value
            for key, value in request.options.items()
            if key not in _OURS and value is not None and (can.temperature or key not in _SAMPLING)
        }
        body["model"] = self.model
        body["messages"] = chat_messages(request)
        body.setdefault(self._max_tokens_field, request.max_tokens)
        if can.tools and request.tools:
            body["tools"] = chat_tools(request.tools)
        if can.temperature and request.temperature is not None:
            body["temperature"] = request.temperature
        if can.json_mode and request.answer_schema is not None:
            form = {"name": "answer", "schema": request.answer_schema}
            body.setdefault("response_format", {"type": "json_schema", "json_schema": form})
        if can.streaming:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        try:
            return json_bytes(body)
        except (TypeError, ValueError) as error:
            raise Permanent(
                f"{self._name}: the request cannot be written as JSON: {error}",
                code="MODEL_BAD_REQUEST",
            ) from None

    async def _ask(self, call: _Call, body: bytes, deadline: asyncio.Timeout) -> None:
        request = httpx.Request("POST", self._url, headers=self._headers, content=body)
        response = await self._client.send(request, stream=True)
        try:
            call.request_id = response.headers.get("x-request-id")
            call.rate = rate_of(response.headers)
            if response.status_code >= 300:
                raise await self._refused(response)
            if response.headers.get("content-type", "").startswith("application/json"):
                await self._take_whole(call, response)
            else:
                await self._take_stream(call, response, deadline)
        finally:
            # Also on cancellation: closing an unfinished response drops the connection, and the
            # server stops.
            await response.aclose()

    async def _take_stream(
        self, call: _Call, response: httpx.Response, deadline: asyncio.Timeout
    ) -> None:
        decoder = SseDecoder()
        done = False
        async for chunk in response.aiter_bytes():
            if done:
                continue
            try:
                events = decoder.feed(chunk)
            except ValueError as error:
                raise self._bad_stream(error) from None
            done = await self._take(call, events)
            if call.answer.alive and call.first_token_s is None:
                call.first_token_s = call.now() - call.started
                deadline.reschedule(call.started + call.request.total_timeout_s)
            if done:
                deadline.reschedule(call.now() + DRAIN_S)
        if not done:
            await self._take(call, [event for event in decoder.flush() if _is_whole(event[1])])

    async def _take(self, call: _Call, events: list[tuple[bytes, bytes]]) -> bool:
        """Add the events of one chunk, show their text in one piece, and tell whether it is all."""
        pieces: list[str] = []
        for _, data in events:
            if data.strip() == b"[DONE]":
                call.answer.done = True
                break
            pieces.append(self._add(call.answer, data))
        if call.on_delta is not None and (text := "".join(pieces)):
            await call.on_delta(text)
        return call.answer.done

    async def _take_whole(self, call: _Call, response: httpx.Response) -> None:
        """Read an answer in one piece: streaming is off, or the server does not know how."""
        body = await _read_at_most(response, MAX_ANSWER_CHARS)
        text = self._add(call.answer, body)
        if not call.answer.alive:
            raise self._bad_stream(ValueError("the answer has no choices"))
        call.answer.done = True
        call.first_token_s = call.now() - call.started
        if call.on_delta is not None and text:
            await call.on_delta(text)

    def _add(self, answer: ChatAnswer, data: bytes) -> str:
        try:
            event = orjson.loads(data)
            error = read_error(event)
            piece = "" if error else answer.add(event)
        except (ValueError, TypeError, AttributeError, LookupError) as bad:
            # Whatever a server sends that is not a chunk; half an event of a cut stream ends here
            # too.
            raise self._bad_stream(bad) from None
        if error:
            raise event_failure(error, self._origin)
        if answer.size > MAX_ANSWER_CHARS:
            raise Permanent(
                f"{self._name}: the answer is longer than {MAX_ANSWER_CHARS} characters",
                code="ANSWER_TOO_LARGE",
                limit=MAX_ANSWER_CHARS,
            )
        return piece

    async def _refused(self, response: httpx.Response) -> HarnessError:
        if response.status_code < 400:
            return Permanent(
                f"{self._name}: the server answered {response.status_code}, a redirect; "
                "set HARNESS_OPENAI_BASE_URL to the address it really has",
                code="MODEL_BAD_REQUEST",
                status=response.status_code,
            )
        body = await _read_at_most(response, MAX_ERROR_BYTES)
        return failure(response.status_code, read_body(body), response.headers, self._origin)

    def _bad_stream(self, error: Exception) -> Transient:
        words = redact(str(error), self._origin.secret)
        return Transient(
            f"{self._name}: the stream is not Chat Completions: {words}", code="BAD_STREAM"
        )

    def _broken(self, call: _Call, expired: bool, error: Exception) -> Transient:
        request = call.request
        if not expired:
            words = redact(f"{type(error).__name__}: {error}", self._origin.secret)
            code = "STREAM_CUT" if call.answer.alive else "MODEL_CONNECTION"
            return Transient(f"{self._name}: the connection failed: {words}", code=code)
        if not call.answer.alive and request.first_token_timeout_s < request.total_timeout_s:
            return Transient(
                f"{self._name}: no token within {request.first_token_timeout_s} s",
                code="FIRST_TOKEN_TIMEOUT",
                limit_s=request.first_token_timeout_s,
            )
        return Transient(
            f"{self._name}: no whole answer within {request.total_timeout_s} s",
            code="MODEL_TIMEOUT",
            limit_s=request.total_timeout_s,
        )

    def _result(self, call: _Call) -> ChatResult:
        answer = call.answer
        message = answer.message()
        usage = answer.usage() or Usage(
            request_tokens(call.request), message_tokens(message), estimated=True
        )
        return ChatResult(
            message=message,
            usage=usage,
            finish=answer.finish(),
            model=answer.model or self.model,
            provider_request_id=call.request_id or answer.id or None,
            cost_usd=self._prices.cost_usd(self._name, usage),
            first_token_ms=None if call.first_token_s is None else call.first_token_s * 1000,
            rate=call.rate,
        )


class _Call:
    """What one call holds while it is open."""

    __slots__ = (
        "answer", "first_token_s", "now", "on_delta", "rate", "request", "request_id", "started",
    )  # fmt: skip

    def __init__(self, request: ChatRequest, on_delta: OnDelta | None) -> None:
        self.request = request
        self.on_delta = on_delta
        self.answer = ChatAnswer()
        self.now = asyncio.get_running_loop().time
        self.started = self.now()
        self.first_token_s: float | None = None
        self.request_id: str | None = None
        self.rate: Rate | None = None


def _is_whole(data: bytes) -> bool:
    """Tell whether the last event of a stream arrived whole; half of one only shows that the stream
    was cut.
    """
    if data.strip() == b"[DONE]":
        return True
    try:
        orjson.loads(data)
    except ValueError:
        return False
    return True


async def _read_at_most(response: httpx.Response, limit: int) -> bytes:
    """Read a body, and no more of it than about `limit` bytes."""
    parts: list[bytes] = []
    size = 0
    async for chunk in response.aiter_bytes():
        parts.append(chunk)
        size += len(chunk)
        if size > limit:
            break
    return b"".join(parts)
