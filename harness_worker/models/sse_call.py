"""One call of a model server over HTTP: the request, the streamed answer, the deadlines.

For providers whose answers are Server-Sent Events or one JSON document. What the events mean is the
provider's `Dialect`; what a cut stream, a timeout or a broken connection is, is the same for all.
Nothing is tried twice here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import httpx
import orjson

from harness_common.contracts.model import ChatRequest, OnDelta
from harness_common.core.errors import HarnessError, Permanent, Transient
from harness_common.core.message import Json
from harness_worker.models.http import TRANSPORT_ERRORS
from harness_worker.models.redact import redact
from harness_worker.models.sse import SseDecoder

DRAIN_S: Final = 0.5
"""How long we wait after the last event for the end of the body, which makes the connection fit for
the next call.
"""
MAX_ERROR_BYTES: Final = 64 * 1024
MAX_ANSWER_CHARS: Final = 8 * 1024 * 1024


class Answer(Protocol):
    """An answer in the making."""

    alive: bool
    """True once the model has produced anything."""
    done: bool
    """True once the server said that nothing follows."""
    size: int
    """Characters taken so far."""

    @property
    def complete(self) -> bool:
        """Tell whether the server ended the answer; a stream that just stops was cut."""
        ...

    def add(self, event: Json) -> str:
        """Take one event and return the text it adds for a reader.

        Raises `ValueError`, `TypeError`, `AttributeError` or `LookupError` for what is none.
        """
        ...

    def add_whole(self, body: Json) -> str:
        """Take an answer that came in one piece."""
        ...


class Dialect(Protocol):
    """What a provider knows of its own server."""

    name: str
    """`provider/model`, for people."""
    secret: str
    """The credential, which no message may quote."""
    base_url_setting: str
    """The setting that holds the address."""
    protocol: str
    """The API in our own words, for people."""
    last: bytes
    """The data that ends a stream where no event does; empty: there is none."""

    def refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> HarnessError:
        """Classify an answer of an error status."""
        ...

    def event_error(self, event: Json) -> HarnessError | None:
        """Return the error that an event or a whole answer is; None when it is none."""
        ...


@dataclass(frozen=True, slots=True)
class Heard:
    """What is known of a finished call besides its answer."""

    headers: Mapping[str, str]
    first_token_s: float | None


class SseCall:
    """One request under way; `run` may be called once."""

    __slots__ = (
        "_answer", "_client", "_deadline", "_dialect", "_first_token_s", "_headers", "_now",
        "_on_delta", "_request", "_started",
    )  # fmt: skip

    def __init__(
        self,
        client: httpx.AsyncClient,
        dialect: Dialect,
        answer: Answer,
        request: ChatRequest,
        on_delta: OnDelta | None,
    ) -> None:
        self._client = client
        self._dialect = dialect
        self._answer = answer
        self._request = request
        self._on_delta = on_delta
        self._now = asyncio.get_running_loop().time
        self._started = self._now()
        self._first_token_s: float | None = None
        self._headers: Mapping[str, str] = {}
        # One timer: it stands at the first token, then moves to the end of the whole call.
        self._deadline = asyncio.timeout(
            min(request.first_token_timeout_s, request.total_timeout_s)
        )

    async def run(self, url: httpx.URL, headers: Mapping[str, str], body: bytes) -> Heard:
        """Ask, and take the answer; raises what `Model.chat` raises."""
        request = httpx.Request("POST", url, headers=dict(headers), content=body)
        try:
            async with self._deadline:
                await self._ask(request)
        except TRANSPORT_ERRORS as error:
            # After its end only the end of the body can be lost: the answer is whole.
            if not self._answer.complete:
                raise self._broken(error) from None
        if not self._answer.complete:
            raise Transient(
                f"{self._dialect.name}: the stream ended before the answer did", code="STREAM_CUT"
            )
        return Heard(self._headers, self._first_token_s)

    async def _ask(self, request: httpx.Request) -> None:
        response = await self._client.send(request, stream=True)
        try:
            self._headers = response.headers
            if response.status_code >= 300:
                raise await self._refused(response)
            if response.headers.get("content-type", "").startswith("application/json"):
                await self._take_whole(response)
            else:
                await self._take_stream(response)
        finally:
            # Also on cancellation: closing an unfinished response drops the connection, and the
            # server stops.
            await response.aclose()

    async def _take_stream(self, response: httpx.Response) -> None:
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
            done = await self._take(events)
            if self._answer.alive and self._first_token_s is None:
                self._first_token_s = self._now() - self._started
                self._deadline.reschedule(self._started + self._request.total_timeout_s)
            if done:
                self._deadline.reschedule(self._now() + DRAIN_S)
        if not done:
            await self._take([data for _, data in decoder.flush() if self._is_whole(data)])

    async def _take(self, events: list[bytes]) -> bool:
        """Add the events of one chunk, show their text in one piece, and tell whether it is all."""
        pieces: list[str] = []
        for data in events:
            if data[:1] != b"{" and self._is_last(data):
                self._answer.done = True
            else:
                pieces.append(self._add(data))
            if self._answer.done:
                break
        if self._on_delta is not None and (text := "".join(pieces)):
            await self._on_delta(text)
        return self._answer.done

    async def _take_whole(self, response: httpx.Response) -> None:
        """Read an answer in one piece: streaming is off, or the server does not know how."""
        text = self._add(await _read_at_most(response, MAX_ANSWER_CHARS), whole=True)
        self._answer.done = True
        self._first_token_s = self._now() - self._started
        if self._on_delta is not None and text:
            await self._on_delta(text)

    def _add(self, data: bytes, *, whole: bool = False) -> str:
        answer = self._answer
        try:
            event = orjson.loads(data)
            error = self._dialect.event_error(event)
            take = answer.add_whole if whole else answer.add
            piece = "" if error else take(event)
        except (ValueError, TypeError, AttributeError, LookupError) as bad:
            # Whatever a server sends that is no event; half an event of a cut stream ends here too.
            raise self._bad_stream(bad) from None
        if error:
            raise error
        if answer.size > MAX_ANSWER_CHARS:
            raise Permanent(
                f"{self._dialect.name}: the answer is longer than {MAX_ANSWER_CHARS} characters",
                code="ANSWER_TOO_LARGE",
                limit=MAX_ANSWER_CHARS,
            )
        return piece

    async def _refused(self, response: httpx.Response) -> HarnessError:
        if response.status_code < 400:
            return Permanent(
                f"{self._dialect.name}: the server answered {response.status_code}, a redirect; "
                f"set {self._dialect.base_url_setting} to the address it really has",
                code="MODEL_BAD_REQUEST",
                status=response.status_code,
            )
        body = await _read_at_most(response, MAX_ERROR_BYTES)
        return self._dialect.refusal(response.status_code, body, response.headers)

    def _is_last(self, data: bytes) -> bool:
        return bool(self._dialect.last) and data.strip() == self._dialect.last

    def _is_whole(self, data: bytes) -> bool:
        """Tell whether the last event of a stream arrived whole; half of one only shows that the
        stream was cut.
        """
        if self._is_last(data):
            return True
        try:
            orjson.loads(data)
        except ValueError:
            return False
        return True

    def _bad_stream(self, error: Exception) -> Transient:
        words = redact(str(error), self._dialect.secret)
        return Transient(
            f"{self._dialect.name}: the stream is not {self._dialect.protocol}: {words}",
            code="BAD_STREAM",
        )

    def _broken(self, error: Exception) -> Transient:
        name, request, alive = self._dialect.name, self._request, self._answer.alive
        if not self._deadline.expired():
            words = redact(f"{type(error).__name__}: {error}", self._dialect.secret)
            code = "STREAM_CUT" if alive else "MODEL_CONNECTION"
            return Transient(f"{name}: the connection failed: {words}", code=code)
        if not alive and request.first_token_timeout_s < request.total_timeout_s:
            return Transient(
                f"{name}: no token within {request.first_token_timeout_s} s",
                code="FIRST_TOKEN_TIMEOUT",
                limit_s=request.first_token_timeout_s,
            )
        return Transient(
            f"{name}: no whole answer within {request.total_timeout_s} s",
            code="MODEL_TIMEOUT",
            limit_s=request.total_timeout_s,
        )


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
