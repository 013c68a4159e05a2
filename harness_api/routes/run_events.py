"""A run's events: as pages of JSON, or as a stream."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Header, Query
from starlette.responses import Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import LongLimit
from harness_api.routes.ids import RunId
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.runs import EventView
from harness_api.sse import event_json, stream_events
from harness_common.store.run_reads import read_events

router = new_router("/v1/runs/{run_id}", "events")

CanRead = Annotated[Caller, requires("runs:read")]
After = Annotated[int, Query(ge=0, lt=2**31, description="Only events with a greater `seq`.")]
LastEventId = Annotated[
    str,
    Header(
        alias="Last-Event-ID",
        pattern="^[0-9]{0,9}$",
        description="Where a stream was cut; wins over `after`.",
    ),
]
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events until the run ends. Those without an id are live only; `wait` says "
        "that nothing comes until a person does something.",
        "content": {"text/event-stream": {"schema": {"type": "object"}}},
    }
}


@router.get("/events", operation_id="listEvents", response_model=Page[EventView], responses=_STREAM)
async def get_events(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    after: After = 0,
    limit: LongLimit = 100,
    accept: Annotated[str | None, Header(include_in_schema=False)] = None,
    last_event_id: LastEventId = "",
) -> Response | Page[EventView]:
    """Read events in order. With `Accept: text/event-stream` this is the stream."""
    if accept is not None and "text/event-stream" in accept:
        return await _stream(services, caller, run_id, int(last_event_id or after))
    found = await read_events(services.db, caller.tenant_id, run_id, after=after, limit=limit + 1)
    rows = found.events[:limit]
    more = len(found.events) > limit
    return Page[EventView](
        data=[EventView(**event_json(row)) for row in rows],
        next_cursor=str(rows[-1]["seq"]) if more else None,
    )


@router.get("/stream", operation_id="streamEvents", response_class=Response, responses=_STREAM)
async def get_stream(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    after: After = 0,
    last_event_id: LastEventId = "",
) -> Response:
    """Follow events as server-sent events; `Last-Event-ID` or `after` resumes without gap or
    repeat.
    """
    return await _stream(services, caller, run_id, int(last_event_id or after))


async def _stream(services: Services, caller: Caller, run_id: UUID, after: int) -> Response:
    # 404 before 200.
    await read_events(services.db, caller.tenant_id, run_id, after=after, limit=1)
    return stream_events(services, caller, run_id, after)
