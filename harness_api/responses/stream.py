"""Following a response: as server-sent events, or until it is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import orjson
from starlette.responses import StreamingResponse

from harness_api.auth import Caller
from harness_api.deps import Services
from harness_api.live import Reader
from harness_api.responses.emit import Event
from harness_api.responses.view import ENDS, Response
from harness_api.sse import news
from harness_common.core import events as ev
from harness_common.core.errors import Transient

_RETRY_S: Final = 1.0


def stream_response(
    services: Services, caller: Caller, response: Response, seen: int
) -> StreamingResponse:
    """Answer with the events whose number is greater than `seen`, then with what comes."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    body = _frames(services, caller, response, seen)
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def _frames(
    services: Services, caller: Caller, response: Response, seen: int
) -> AsyncGenerator[bytes, None]:
    async for event in follow(services, caller, response):
        if event is None:
            yield b": ping\n\n"
        elif (rest := _unseen(event, seen)) is not None:
            body = orjson.dumps(rest.json(), option=orjson.OPT_NON_STR_KEYS)
            yield b"event: %b\ndata: %b\n\n" % (rest.type.encode(), body)


def _unseen(event: Event, seen: int) -> Event | None:
    """Return what the client has not seen. The end is always told: it may lie behind text of an
    attempt that came to nothing, of which the record knows no number.
    """
    if event.type in ENDS and event.seq <= seen:
        return Event(event.type, seen + 1, event.body)
    return event.after(seen)


async def settle(services: Services, caller: Caller, response: Response, wait_s: float) -> None:
    """Read a response until it is over, for at most `wait_s`."""
    try:
        async with asyncio.timeout(wait_s):
            async for _ in follow(services, caller, response):
                pass
    except TimeoutError:
        return


async def follow(
    services: Services, caller: Caller, response: Response
) -> AsyncGenerator[Event | None, None]:
    """Yield the events of a response until it is over, the caller's key is not alive any more, or
    the process stops; None now and then.
    """
    for event in response.first():
        yield event
    async with services.hub.watch(response.tenant_id, response.ref.run_id) as reader:
        reader.notice()
        while (heard := await news(services, reader, caller.public_id)) is not None:
            if not heard:
                yield None
            # What is on record first: a failed attempt is closed before the next one's text.
            for event in await _recorded(response, reader):
                yield event
            if response.over:
                yield response.last()
                return
            for item in reader.deltas():
                if item.get("type") == ev.LIVE_DELTA and "at" in item:
                    place = item["step"], item["at"], item["text"], item.get("again", 0)
                    for event in response.emitter.live(*place):
                        yield event


async def _recorded(response: Response, reader: Reader) -> list[Event]:
    """Read what is new on record; while Postgres is away, nothing is."""
    if not reader.take_notice():
        return []
    try:
        return await response.advance()
    except Transient:
        await asyncio.sleep(_RETRY_S)
        reader.notice()
        return []
