"""Server-sent events: a run's durable events from Postgres, then live, without gap or repeat;
deltas in between, not durable.

`id:` is the event's sequence number, so that a browser's `Last-Event-ID` resumes exactly. The live
channel is joined before the first read, so that nothing falls between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import orjson
from starlette.responses import StreamingResponse

from harness_api.auth import Caller
from harness_api.deps import Services
from harness_api.live import Reader
from harness_common.core import events as ev
from harness_common.core.errors import Transient
from harness_common.store.connection import Row
from harness_common.store.run_reads import EventPage, read_events

_PAGE: Final = 200
_RETRY_S: Final = 1.0
_LIVE: Final = frozenset({ev.LIVE_DELTA, ev.LIVE_STEP_STARTED, ev.TOOL_PROGRESS})


def event_json(row: Row) -> dict[str, Any]:
    """Return an event as it is shown."""
    return {
        "seq": row["seq"],
        "type": row["type"],
        "step": row["step"],
        "at": row["at"],
        "payload": row["payload"],
    }


def _frame(name: str, data: object, event_id: int | None = None) -> bytes:
    first = b"" if event_id is None else b"id: %d\n" % event_id
    body = orjson.dumps(data, option=orjson.OPT_UTC_Z)
    return first + b"event: %b\ndata: %b\n\n" % (name.encode(), body)


def stream_events(
    services: Services, caller: Caller, run_id: UUID, after: int
) -> StreamingResponse:
    """Answer with the events after `after`, then with what comes. The caller has seen that the run
    exists.
    """
    body = follow(services, caller.tenant_id, run_id, after, caller.public_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


async def follow(
    services: Services, tenant_id: UUID, run_id: UUID, after: int, public_id: str
) -> AsyncGenerator[bytes, None]:
    """Yield frames until the run has ended, the key `public_id` is revoked or expires, or the
    process stops. A frame `wait` says that nothing more comes until a person does something; the
    stream stays open.
    """
    place = _Place(after)
    yield b": events of run_%b\n\n" % run_id.hex.encode()
    async with services.hub.watch(tenant_id, run_id) as reader:
        reader.notice()
        while (heard := await news(services, reader, public_id)) is not None:
            if not heard:
                yield b": ping\n\n"
            for item in reader.deltas():
                if frame := place.delta(item):
                    yield frame
            while reader.take_notice():
                page = await _read(services, tenant_id, run_id, place.seq)
                if page is None:
                    await asyncio.sleep(_RETRY_S)
                    reader.notice()
                    continue
                for row in page.events:
                    yield place.event(row)
                yield place.rest(page)
                if page.ended:
                    return
                if len(page.events) == _PAGE:
                    reader.notice()


async def news(services: Services, reader: Reader, public_id: str) -> bool | None:
    """Wait for something new; False when nothing came for a while, None when a stream is to end:
    the process stops, or the key by which it was asked for is not alive any more.
    """
    if services.stopping.is_set():
        return None
    heard = await reader.wait(services.config.api.sse_ping_s)
    return heard if await services.keyring.lives(public_id) else None


@dataclass(slots=True)
class _Place:
    """How far a stream is."""

    seq: int
    step: int = 0
    """The last step that is known to be complete; deltas of it come too late to be shown."""
    told: int = -1
    """The event after which it was said that a person is waited for."""

    def event(self, row: Row) -> bytes:
        self.seq = row["seq"]
        if row["type"] == ev.STEP_COMPLETED:
            self.step = row["step"]
        return _frame(row["type"], event_json(row), row["seq"])

    def rest(self, page: EventPage) -> bytes:
        """Say that the run is over, or (once after an event) that a person is waited for."""
        told = {"status": str(page.status), "last_seq": self.seq}
        if page.ended:
            return _frame("end", told)
        if not page.waits or self.told == self.seq:
            return b""
        self.told = self.seq
        return _frame("wait", told)

    def delta(self, item: dict[str, Any]) -> bytes | None:
        kind, step = item.get("type"), item.get("step")
        if kind not in _LIVE or (isinstance(step, int) and step <= self.step):
            return None
        rest = {k: v for k, v in item.items() if k != "type"}
        return _frame(kind, {**rest, "durable": False})


async def _read(services: Services, tenant_id: UUID, run_id: UUID, after: int) -> EventPage | None:
    """Read the next page; None while Postgres is away, so that the stream keeps its place."""
    try:
        return await read_events(services.db, tenant_id, run_id, after=after, limit=_PAGE)
    except Transient:
        return None
