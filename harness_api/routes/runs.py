"""Runs: start, list, read. The straight line of a run begins at `create_run`."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Annotated, Final
from uuid import UUID

import orjson
from fastapi import Header, Query, Request, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import id_of, page
from harness_api.routes.announce import announce, trace_id_of
from harness_api.routes.ids import RunId
from harness_api.routes.run_view import run_view
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.runs import RunCreate, RunQuery, RunView
from harness_common.commands import StartRun, start_run
from harness_common.core.ids import decode, encode
from harness_common.core.run import TERMINAL, Status
from harness_common.core.session import NEEDS_A_PERSON
from harness_common.store.connection import Row
from harness_common.store.run_reads import list_runs, searched_to, view_run
from harness_common.store.waiting import why_queued

router = new_router("/v1/runs", "runs")

_SETTLED: Final = TERMINAL | NEEDS_A_PERSON | {Status.PAUSED}

CanRead = Annotated[Caller, requires("runs:read")]
CanWrite = Annotated[Caller, requires("runs:write")]


@router.post("", status_code=202, operation_id="createRun", response_model=RunView)
async def create_run(
    body: RunCreate,
    request: Request,
    response: Response,
    services: Use,
    caller: CanWrite,
    key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            pattern="^[!-~]([ -~]{0,253}[!-~])?$",
            description="1 to 255 printable characters. The same key with the same body gives "
            "the same run for 24 h.",
        ),
    ] = None,
) -> RunView:
    """Start a run. It is durable when this answers, and is worked on as soon as its tenant has
    room.

    In a session with a run that is still going, `on_busy` decides: `reject` (409), `enqueue` (after
    it), `interrupt` (all that is going in it is asked to stop first), or `steer` (the input goes to
    the run under way, which is then the answer, with the header `Harness-Steered: true`).
    """
    body.check_together()
    started = await start_run(
        services.db,
        caller.tenant_id,
        StartRun(
            agent=body.agent,
            input=body.input,
            agent_version=body.agent_version,
            skills=tuple(body.skills),
            session_id=decode("session", body.session_id) if body.session_id else None,
            title=body.title,
            user_id=body.user_id,
            tags=body.tags,
            priority=body.priority,
            max_turns=body.max_turns,
            max_tokens=body.max_tokens,
            max_cost_usd=body.max_cost_usd,
            timeout_s=body.timeout_s,
            on_busy=body.on_busy,
            output_schema=body.output_schema,
            concurrency_key=body.concurrency_key,
            concurrency_max=body.concurrency_max,
            created_by=caller.name,
            trace_id=trace_id_of(request),
            idempotency_key=key,
            body_digest=_digest(body),
            idempotency_ttl_s=services.config.api.idempotency_ttl_s,
        ),
        actor=caller.actor,
    )
    if started.replayed:
        response.headers["Idempotency-Replayed"] = "true"
    else:
        await announce(services, started)
    if started.steered:
        response.headers["Harness-Steered"] = "true"
    response.headers["Location"] = f"/v1/runs/{encode('run', started.run_id)}"
    return run_view(await view_run(services.db, caller.tenant_id, started.run_id))


def _digest(body: RunCreate) -> str:
    """Return the SHA-256 of a request by its meaning: the order of its fields does not matter."""
    text = orjson.dumps(body.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(text).hexdigest()


@router.get("", operation_id="listRuns", response_model=Page[RunView])
async def get_runs(
    services: Use, caller: CanRead, query: Annotated[RunQuery, Query()]
) -> Page[RunView]:
    """List runs, newest first."""
    before = id_of(query.cursor)
    rows = await list_runs(
        services.db,
        caller.tenant_id,
        query.wanted(),
        before=before,
        limit=query.limit + 1,
    )
    data, next_cursor = page(rows, query.limit, run_view, "id")
    if next_cursor is None and query.text is not None:
        oldest = await searched_to(services.db, caller.tenant_id, before)
        next_cursor = oldest.hex if oldest is not None else None
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{run_id}", operation_id="getRun", response_model=RunView)
async def get_run(
    run_id: RunId,
    services: Use,
    caller: CanRead,
    wait: Annotated[
        float,
        Query(ge=0, le=60, description="Seconds to wait until the run is over or needs a person."),
    ] = 0,
) -> RunView:
    """Read a run; with `wait` as soon as it is over or waits for a person, and in any case after
    that time.
    """
    row = await view_run(services.db, caller.tenant_id, run_id)
    if wait and Status(row["status"]) not in _SETTLED:
        row = await _wait(
            services, caller.tenant_id, run_id, min(wait, services.config.api.max_wait_s)
        )
    waiting = None
    if row["status"] == Status.QUEUED:
        waiting = await why_queued(services.db, caller.tenant_id, run_id, services.config)
    return run_view(row, waiting)


async def _wait(services: Services, tenant_id: UUID, run_id: UUID, wait_s: float) -> Row:
    loop = asyncio.get_running_loop()
    until = loop.time() + wait_s
    async with services.hub.watch(tenant_id, run_id) as reader:
        while True:
            row = await view_run(services.db, tenant_id, run_id)
            left_s = until - loop.time()
            if Status(row["status"]) in _SETTLED or left_s <= 0 or services.stopping.is_set():
                return row
            await reader.wait_notice(left_s)
