"""One request to a server of the OpenAI family: what its two protocols have in common.

Used by `openai_chat` and `openai_responses`, which bring the body and the parser of the answer; the
call itself is `sse_call`'s, as for every provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import httpx

from harness_common.contracts.model import ChatRequest, ChatResult, Finish, OnDelta, Usage
from harness_common.core.errors import HarnessError
from harness_common.core.message import Json, Message
from harness_worker.models import sse_call
from harness_worker.models.estimate import message_tokens, request_tokens
from harness_worker.models.openai_errors import (
    Origin,
    ServerError,
    event_failure,
    failure,
    read_body,
)
from harness_worker.models.retry_after import rate_of

OPENAI_URL: Final = "https://api.openai.com/v1"
_HEADERS: Final = {
    "content-type": "application/json",
    "accept": "text/event-stream, application/json",
    "accept-encoding": "identity",  # a compressor would hold tokens back
    "user-agent": "harness",
}


class Answer(sse_call.Answer, Protocol):
    """An answer in the making, which knows what it is."""

    id: str
    model: str

    def message(self) -> Message:
        """Return the answer as a message."""
        ...

    def finish(self) -> Finish:
        """Say how the answer ended."""
        ...

    def usage(self) -> Usage | None:
        """Return the tokens the server reported, or None."""
        ...


class Endpoint:
    """One address of one server, asked for one model (`sse_call.Dialect`).

    `client` is shared and stays open. `protocol` is the name of the API in our own words;
    `find_error` finds the error in a JSON body or event, or returns None.
    """

    __slots__ = (
        "_client", "_find_error", "_headers", "_origin", "_url", "base_url_setting", "last", "name",
        "protocol", "secret",
    )  # fmt: skip

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        origin: Origin,
        *,
        protocol: str,
        find_error: Callable[[Json], ServerError | None],
    ) -> None:
        self._client = client
        self._find_error = find_error
        self._origin = origin
        self._url = httpx.URL(url)
        self.name = f"{origin.provider}/{origin.model}"
        self.secret = origin.secret
        self.base_url_setting = "HARNESS_OPENAI_BASE_URL"
        self.protocol = protocol
        self.last = b"[DONE]"
        key = {"authorization": f"Bearer {origin.secret}"} if origin.secret else {}
        self._headers = _HEADERS | key

    async def ask(
        self, request: ChatRequest, body: bytes, answer: Answer, on_delta: OnDelta | None
    ) -> ChatResult:
        """Send `body`, fill `answer` until it is complete, and return it without its cost.
        `on_delta` must not raise.

        Codes of `Transient`: FIRST_TOKEN_TIMEOUT, MODEL_TIMEOUT, MODEL_CONNECTION, STREAM_CUT,
        BAD_STREAM, MODEL_UNAVAILABLE. Of `Permanent`: CONTEXT_OVERFLOW, INSUFFICIENT_QUOTA,
        REQUEST_TOO_LARGE, MODEL_AUTH, MODEL_NOT_FOUND, MODEL_BAD_REQUEST, MODEL_REFUSED,
        MODEL_NO_RETRY, ANSWER_TOO_LARGE.
        """
        call = sse_call.SseCall(self._client, self, answer, request, on_delta)
        heard = await call.run(self._url, self._headers, body)
        message = answer.message()
        usage = answer.usage() or Usage(
            request_tokens(request), message_tokens(message), estimated=True
        )
        first_s = heard.first_token_s
        return ChatResult(
            message=message,
            usage=usage,
            finish=answer.finish(),
            model=answer.model or self._origin.model,
            provider_request_id=heard.headers.get("x-request-id") or answer.id or None,
            first_token_ms=None if first_s is None else first_s * 1000,
            rate=rate_of(heard.headers),
        )

    def refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> HarnessError:
        """Classify an answer of an error status."""
        return failure(status, read_body(body), headers, self._origin)

    def event_error(self, event: Json) -> HarnessError | None:
        """Return the error that an event or a whole answer is; None when it is none."""
        found = self._find_error(event)
        return None if not found else event_failure(found, self._origin)
