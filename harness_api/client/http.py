"""Requests and their answers: building, repeating where that is safe, reading errors.

A request is sent again only if that cannot do anything twice: nothing was sent (no connection), it
only reads, the server says that a repeat is harmless, or it carries an Idempotency-Key.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from harness_api.client.errors import ApiError, BadAnswer, Unreachable, error_of, unreachable
from harness_api.client.target import Target
from harness_api.client.wire import Opened, Wire
from harness_common.core.errors import Invalid

V = TypeVar("V", bound=BaseModel)

_AGENT: Final = "harness-client"
_WORTH_REPEATING: Final = frozenset({429, 502, 503, 504})
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
"""A server that asks for a longer one is not waited for."""
PAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Call:
    """One request to make."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    """Besides GET, which always is."""
    read_timeout_s: float | None = None

    @property
    def may_repeat(self) -> bool:
        """Tell whether making it twice does what making it once does."""
        return self.repeatable or self.method == "GET"


def given(**values: Any) -> dict[str, Any]:
    """Return what is not None: the server has its own defaults."""
    return {name: value for name, value in values.items() if value is not None}


def pause_s(attempt: int, minimum_s: float | None) -> float:
    """Return how long to wait after the `attempt`-th failure: doubling, with jitter, never less
    than the server asked for.
    """
    doubled: float = min(5.0, _FIRST_PAUSE_S * 2 ** (attempt - 1))
    return max(minimum_s or 0.0, doubled * random.uniform(0.5, 1.0))


class Http:
    """Makes calls over a wire; `retries` is how often one is repeated at most."""

    def __init__(self, wire: Wire, target: Target, *, timeout_s: float, retries: int) -> None:
        self.wire = wire
        self._target = target
        self._timeout_s = timeout_s
        self._retries = retries

    def build(self, call: Call) -> httpx.Request:
        """Write a call as a request; raises `Invalid` for what has no form in JSON."""
        headers = {"User-Agent": _AGENT, "Accept": "application/json", **call.headers}
        if self._target.api_key is not None:
            headers["Authorization"] = f"Bearer {self._target.api_key}"
        elif call.path.startswith("/v1/"):
            raise Invalid(
                f"No API key for {self._target.base_url}. Set HARNESS_API_KEY.", code="NO_API_KEY"
            )
        read_s = call.read_timeout_s or self._timeout_s
        timeout = httpx.Timeout(self._timeout_s, read=read_s)
        try:
            return httpx.Request(
                call.method,
                self._target.base_url + call.path,
                params=call.params or None,
                headers=headers,
                json=call.body,
                extensions={"timeout": timeout.as_dict()},
            )
        except ValueError as error:  # infinity, half of a character
            raise Invalid(f"This cannot be sent as JSON: {error}", code="USAGE") from error

    async def send(self, call: Call) -> httpx.Response:
        """Make a call; return its 2xx answer. Raises `ApiError` and `Unreachable`."""
        attempt = 0
        while True:
            attempt += 1
            request = self.build(call)
            failure: ApiError | Unreachable
            wait_s = None
            try:
                response = await self.wire.send(request)
            except httpx.TransportError as error:
                again = call.may_repeat or isinstance(error, _NOT_SENT)
                failure = unreachable(error, request)
            else:
                if response.is_success:
                    return response
                failure = error_of(response)
                wait_s = failure.retry_after_s
                again = call.may_repeat and failure.status in _WORTH_REPEATING
            wait_s = pause_s(attempt, wait_s)
            if not again or attempt > self._retries or wait_s > _LONGEST_PAUSE_S:
                raise failure
            await self.wire.sleep(wait_s)

    async def fetch(self, call: Call, kind: type[V]) -> V:
        """Make a call and read its answer as a `kind`."""
        return parse(await self.send(call), kind)

    async def pages(
        self, path: str, kind: type[V], limit: int | None = None, **params: Any
    ) -> AsyncGenerator[V, None]:
        """Yield the entries of a list, at most `limit`, page by page as they are asked for."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            answer = await self.send(Call("GET", path, given(**params, limit=size, cursor=cursor)))
            data, cursor = parse_page(answer, kind)
            for entry in data:
                yield entry
            left = None if left is None else left - len(data)
            if cursor is None:
                return

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncIterator[Opened]:
        """Make a call once and leave its body to be read. Raises `ApiError` and `Unreachable`, the
        latter also when the body breaks off.
        """
        request = self.build(call)
        try:
            async with self.wire.open(request) as opened:
                if not opened.response.is_success:
                    await opened.read()
                    raise error_of(opened.response)
                yield opened
        except httpx.TransportError as error:
            raise unreachable(error, request) from error


def parse(response: httpx.Response, kind: type[V]) -> V:
    """Read a JSON answer; raises `BadAnswer` when it has another shape."""
    try:
        return kind.model_validate_json(response.content)
    except ValidationError as error:
        raise _bad(response, kind.__name__, error) from error


def parse_page(response: httpx.Response, kind: type[V]) -> tuple[list[V], str | None]:
    """Read one page of a list; raises `BadAnswer`."""
    try:
        body = TypeAdapter(dict[str, Any]).validate_json(response.content)
        data = [kind.model_validate(entry) for entry in body["data"]]
    except (ValidationError, KeyError, TypeError) as error:
        raise _bad(response, f"a list of {kind.__name__}", error) from error
    return data, body.get("next_cursor")


def _bad(response: httpx.Response, what: str, error: Exception) -> BadAnswer:
    first = error.errors()[0] if isinstance(error, ValidationError) else {"msg": repr(error)}
    return BadAnswer(
        f"{response.request.url} did not answer with {what} ({first['msg']}). "
        "Check that HARNESS_API_URL leads to a Harness API of about this version.",
        request_id=response.headers.get("Request-Id"),
    )
