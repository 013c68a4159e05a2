"""The Responses face: the unmodified official `openai` clients start durable runs here
(docs/openai-client.md).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from fastapi import Header, Path, Query, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.responses.create import create
from harness_api.responses.errors import new_openai_router
from harness_api.responses.ids import Ref, read_ref
from harness_api.responses.items import input_item
from harness_api.responses.stream import settle, stream_response
from harness_api.responses.view import open_response, read_response
from harness_api.routes.announce import announce_cancel, trace_id_of
from harness_api.schemas.responses import ResponseCreate
from harness_common.commands import cancel_run
from harness_common.core.message import from_json
from harness_common.store.run_reads import read_messages

router = new_openai_router("/v1/responses", "responses")

CanRead = Annotated[Caller, requires("runs:read")]
CanWrite = Annotated[Caller, requires("runs:write")]
ResponseId = Annotated[str, Path(max_length=80, examples=["resp_" + "0" * 32])]
_CANCEL_S: Final = 5.0
"""How long a cancel waits for the worker to let go."""
_ANSWER: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A response; a stream of its events if one was asked for.",
        "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {}},
    }
}


@router.post("", operation_id="createResponse", response_class=Response, responses=_ANSWER)
async def create_response(
    body: ResponseCreate,
    request: Request,
    services: Use,
    caller: CanWrite,
    key: Annotated[
        str | None, Header(alias="Idempotency-Key", pattern="^[!-~]([ -~]{0,253}[!-~])?$")
    ] = None,
) -> Response:
    """Start a run as a response, go on from one, or hand in the outputs of a client's own tools.

    Answers when the run is over or needs the client (at most `api.response_wait_s`; then the status
    is `in_progress`), at once with `background`, and with events as they come with `stream`.
    """
    ref = await create(services, caller, body, key, trace_id_of(request))
    response = await open_response(services.db, caller.tenant_id, ref)
    if body.stream:
        return stream_response(services, caller, response, -1)
    if body.background:
        return await _shown(services, caller, ref)
    await settle(services, caller, response, services.config.api.response_wait_s)
    return JSONResponse(response.json())


@router.get(
    "/{response_id}", operation_id="getResponse", response_class=Response, responses=_ANSWER
)
async def get_response(
    response_id: ResponseId,
    services: Use,
    caller: CanRead,
    stream: bool = False,
    starting_after: Annotated[
        int, Query(ge=-1, lt=2**53, description="Only events with a greater `sequence_number`.")
    ] = -1,
) -> Response:
    """Read a response as it is now; with `stream` follow it, from `starting_after` on."""
    ref = read_ref(response_id)
    if not stream:
        return await _shown(services, caller, ref)
    response = await open_response(services.db, caller.tenant_id, ref)
    return stream_response(services, caller, response, starting_after)


@router.post(
    "/{response_id}/cancel",
    operation_id="cancelResponse",
    response_class=Response,
    responses=_ANSWER,
)
async def cancel_response(response_id: ResponseId, services: Use, caller: CanWrite) -> Response:
    """Ask the run of a response to stop; waits a few seconds for it. Safe to repeat."""
    ref = read_ref(response_id)
    response = await open_response(services.db, caller.tenant_id, ref)
    asked = await cancel_run(
        services.db, caller.tenant_id, ref.run_id, by=caller.name, actor=caller.actor
    )
    await announce_cancel(services, ref.run_id, asked)
    await settle(services, caller, response, _CANCEL_S)
    return JSONResponse(response.json())


@router.get(
    "/{response_id}/input_items",
    operation_id="listResponseInput",
    response_class=Response,
    responses=_ANSWER,
)
async def get_input_items(
    response_id: ResponseId,
    services: Use,
    caller: CanRead,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=200)] = None,
) -> Response:
    """List what the run of a response was given when it was started."""
    ref = read_ref(response_id)
    rows = await read_messages(services.db, caller.tenant_id, ref.run_id, after=0, limit=1_000)
    first = [row for row in rows if row["step"] == 0]
    items = [
        item
        for row in first
        for item in input_item(f"msg_{ref.run_id.hex}_in_{row['n']}", from_json(row["body"]))
    ]
    items = items if order == "asc" else items[::-1]
    ids = [item["id"] for item in items]
    begin = ids.index(after) + 1 if after in ids else 0
    data = items[begin : begin + limit]
    return JSONResponse(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": begin + limit < len(items),
        }
    )


async def _shown(services: Services, caller: Caller, ref: Ref) -> Response:
    return JSONResponse((await read_response(services.db, caller.tenant_id, ref)).json())
