"""One request to a server of the OpenAI family and its answer, streamed or whole.

Used by `openai_chat` and `openai_responses`, which bring the body and the parser of the answer.
Asks once and never again: every failure is classified and raised, and only the scheduler waits. A
call holds little: one request body, one response, the text so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import httpx
import orjson

from harness_common.contracts.model import ChatRequest, ChatResult, Finish, OnDelta, Usage
from harness_common.core.errors import HarnessError, Permanent, Transient
from harness_common.core.message import Json, Message
from harness_common.core.throttle import Rate
from harness_worker.models.estimate import message_tokens, request_tokens
from harness_worker.models.http import TRANSPORT_ERRORS
from harness_worker.models.openai_errors import (
    Origin,
    ServerError,
    event_failure,
    failure,
    read_body,
)
from harness_worker.models.redact import redact
from harness_worker.models.retry_after import rate_of
from harness_worker.models.sse import SseDecoder

OPENAI_URL: Final = "https://api.openai.com/v1"
DRAIN_S: Final = 0.5
"""How long we wait after the end of an answer for the end of the body, which makes the connection
fit for the next call.
"""
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_ANSWER_CHARS: Final = 8 * 1024 * 1024


class Answer(Protocol):
    """An answer in the making."""

    alive: bool
    """True once the model has produced anything: text, reasoning, a tool call, a finish."""
    done: bool
    """True once nothing more can come."""
    id: str
    model: str
    size: int
    """Characters taken so far."""

    @property
    def complete(self) -> bool:
        """Tell whether the server ended the answer; a stream that just stops was cut."""
        ...

    def add(self, event: dict[str, Json]) -> str:
        """Take one event, or a whole answer, and return the text it adds for a reader.

        Raises `ValueError`, `TypeError`, `AttributeError` or `LookupError` for what is no event.
        """
        ...

    def message(self) -> Message:
        """Return the answer as a message."""
        ...

    def finish(self) -> Finish:
        """Say how the answer ended."""
        ...

    def usage(self) -> Usage | None:
        """Return the tokens the server reported, or None."""
        ...


class Call:
    """What one call holds while it is open."""

    __slots__ = (
        "answer", "first_token_s", "now", "on_delta", "rate", "request", "request_id", "started",
    )  # fmt: skip

    def __init__(self, request: ChatRequest, answer: Answer, on_delta: OnDelta | None) -> None:
        self.request = request
        self.on_delta = on_delta
        self.answer = answer
        self.now = asyncio.get_running_loop().time
        self.started = self.now()
        self.first_token_s: float | None = None
        self.request_id: str | None = None
        self.rate: Rate | None = None

    def result(self, model: str) -> ChatResult:
        """Return the finished answer without its cost; `model` is the name where the server gives
        none.
        """
        answer = self.answer
        message = answer.message()
        usage = answer.usage() or Usage(
            request_tokens(self.request), message_tokens(message), estimated=True
        )
        return ChatResult(
            message=message,
            usage=usage,
            finish=answer.finish(),
            model=answer.model or model,
            provider_request_id=self.request_id or answer.id or None,
            first_token_ms=None if self.first_token_s is None else self.first_token_s * 1000,
            rate=self.rate,
        )


class Endpoint:
    """One address of one server, asked for one model.

    `client` is shared and stays open. `protocol` is the name of the API in our own words;
    `find_error` finds the error in a JSON body or event, or returns None.
    """

    __slots__ = ("_client", "_find_error", "_headers", "_name", "_protocol", "_url", "origin")

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        origin: Origin,
        *,
        protocol: str,
        find_error: Callable[[Json], ServerError | None],
    ) -> None:
        self.origin = origin
        self._client = client
        self._name = f"{origin.provider}/{origin.model}"
        self._url = httpx.URL(url)
        self._protocol = protocol
        self._find_error = find_error
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream, application/json",
            "accept-encoding": "identity",  # a compressor would hold tokens back
            "user-agent": "harness",
        }
        if origin.secret:
            self._headers["authorization"] = f"Bearer {origin.secret}"

    async def ask(
        self, request: ChatRequest, body: bytes, answer: Answer, on_delta: OnDelta | None
    ) -> Call:
        """Send `body` and fill `answer` until it is complete. `on_delta` must not raise.

        Codes of `Transient`: FIRST_TOKEN_TIMEOUT, MODEL_TIMEOUT, MODEL_CONNECTION, STREAM_CUT,
        BAD_STREAM, MODEL_UNAVAILABLE. Of `Permanent`: CONTEXT_OVERFLOW, INSUFFICIENT_QUOTA,
        REQUEST_TOO_LARGE, MODEL_AUTH, MODEL_NOT_FOUND, MODEL_BAD_REQUEST, MODEL_REFUSED,
        MODEL_NO_RETRY, ANSWER_TOO_LARGE.
        """
        call = Call(request, answer, on_delta)
        # One timer: it stands at the first token, then moves to the end of the whole call.
        deadline = asyncio.timeout(min(request.first_token_timeout_s, request.total_timeout_s))
        try:
            async with deadline:
                await self._exchange(call, body, deadline)
        except TRANSPORT_ERRORS as error:
            # After the finish only usage and the end of the body can be lost: the answer is whole.
            if not answer.complete:
                raise self._broken(call, deadline.expired(), error) from None
        if not answer.complete:
            raise Transient(
                f"{self._name}: the stream ended before the answer did", code="STREAM_CUT"
            )
        return call

    async def _exchange(self, call: Call, body: bytes, deadline: asyncio.Timeout) -> None:
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
        self, call: Call, response: httpx.Response, deadline: asyncio.Timeout
    ) -> None:
        decoder = SseDecoder()
        done = False
        async for chunk in response.aiter_bytes():
            if done:
                continue
            try:
                events = decoder.feed_data(chunk)
            except ValueError as error:
                raise self._bad_stream(error) from None
            if not events:
                continue
            done = await self._take(call, events)
            if call.first_token_s is None and call.answer.alive:
                call.first_token_s = call.now() - call.started
                deadline.reschedule(call.started + call.request.total_timeout_s)
            if done:
                deadline.reschedule(call.now() + DRAIN_S)
        if not done:
            await self._take(call, [data for _, data in decoder.flush() if _is_whole(data)])

    async def _take(self, call: Call, events: list[bytes]) -> bool:
        """Add the events of one chunk, show their text in one piece, and tell whether it is all."""
        answer = call.answer
        pieces: list[str] = []
        for data in events:
            if data[:1] != b"{" and data.strip() == b"[DONE]":
                answer.done = True
                break
            pieces.append(self._add(answer, data))
        if call.on_delta is not None and (text := "".join(pieces)):
            await call.on_delta(text)
        return answer.done

    async def _take_whole(self, call: Call, response: httpx.Response) -> None:
        """Read an answer in one piece: streaming is off, or the server does not know how."""
        body = await _read_at_most(response, MAX_ANSWER_CHARS)
        text = self._add(call.answer, body)
        if not call.answer.alive:
            raise self._bad_stream(ValueError("there is no answer in it"))
        call.answer.done = True
        call.first_token_s = call.now() - call.started
        if call.on_delta is not None and text:
            await call.on_delta(text)

    def _add(self, answer: Answer, data: bytes) -> str:
        try:
            event = orjson.loads(data)
            error = self._find_error(event)
            piece = "" if error else answer.add(event)
        except (ValueError, TypeError, AttributeError, LookupError) as bad:
            # Whatever a server sends that is no event; half an event of a cut stream ends here too.
            raise self._bad_stream(bad) from None
        if error:
            raise event_failure(error, self.origin)
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
        return failure(response.status_code, read_body(body), response.headers, self.origin)

    def _bad_stream(self, error: Exception) -> Transient:
        words = redact(str(error), self.origin.secret)
        return Transient(
            f"{self._name}: the stream is not {self._protocol}: {words}", code="BAD_STREAM"
        )

    def _broken(self, call: Call, expired: bool, error: Exception) -> Transient:
        request = call.request
        if not expired:
            words = redact(f"{type(error).__name__}: {error}", self.origin.secret)
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
