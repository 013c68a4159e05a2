"""Runs: start, list, read, cancel, retry. The straight line of a run begins at `create_run`."""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Annotated, Final
from uuid import UUID

import orjson
from fastapi import Header, Query, Request, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import id_of, page
from harness_api.routes.ids import RunId
from harness_api.routes.run_view import run_view
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.runs import RunCancel, RunCreate, RunQuery, RunRetry, RunView
from harness_common.commands import Started, StartRun, cancel_run, retry_run, start_run
from harness_common.core.ids import decode, encode
from harness_common.core.run import TERMINAL, Status
from harness_common.core.session import NEEDS_A_PERSON
from harness_common.store.db import Row
from harness_common.store.run_reads import list_runs, view_run
from harness_common.store.waiting import why_queued

router = new_router("/v1/runs", "runs")

_SETTLED: Final = TERMINAL | NEEDS_A_PERSON | {Status.PAUSED}
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

CanRead = Annotated[Caller, requires("runs:read")]
CanWrite = Annotated[Caller, requires("runs:write")]


def trace_id_of(request: Request) -> str:
    """Return the caller's trace id (W3C Trace Context), empty without a valid one."""
    match = _TRACEPARENT.fullmatch(request.headers.get("traceparent", ""))
    return match[1] if match else ""


async def announce(services: Services, started: Started) -> None:
    """Let a run begin: ring for an admitted one, nudge the scheduler for a queued one. A lost
    signal costs seconds.
    """
    if started.doorbell is not None:
        services.bell.ring(started.doorbell)
    elif started.status is Status.QUEUED:
        await services.channel.nudge()
    admitted = "yes" if started.doorbell is not None else "no"
    services.metrics.runs_accepted.labels(admitted).inc()


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
    """
    started = await start_run(
        services.db,
        caller.tenant_id,
        StartRun(
            agent=body.agent,
            input=body.input,
            agent_version=body.agent_version,
            session_id=decode("session", body.session_id) if body.session_id else None,
            title=body.title,
            user_id=body.user_id,
            tags=body.tags,
            priority=body.priority,
            max_turns=body.max_turns,
            max_tokens=body.max_tokens,
            max_cost_usd=body.max_cost_usd,
            timeout_s=body.timeout_s,
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
    rows = await list_runs(
        services.db,
        caller.tenant_id,
        query.wanted(),
        before=id_of(query.cursor),
        limit=query.limit + 1,
    )
    data, next_cursor = page(rows, query.limit, run_view, "id")
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
    waiting = row["waiting"]
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


@router.post("/{run_id}/cancel", status_code=202, operation_id="cancelRun", response_model=RunView)
async def post_cancel(
    run_id: RunId, services: Use, caller: CanWrite, body: RunCancel | None = None
) -> RunView:
    """Ask a run to stop: at once when nobody works on it, else at its owner's next safe point.
    Safe to repeat.
    """
    reason = body.reason if body else ""
    cancelled = await cancel_run(
        services.db, caller.tenant_id, run_id, by=caller.name, reason=reason, actor=caller.actor
    )
    if cancelled.claimed_by is not None:
        await services.channel.cancel(cancelled.claimed_by, run_id)
    if cancelled.changed:
        await services.channel.live(run_id, {"type": "committed", "status": str(cancelled.status)})
    return run_view(await view_run(services.db, caller.tenant_id, run_id))


@router.post("/{run_id}/retry", status_code=202, operation_id="retryRun", response_model=RunView)
async def post_retry(
    run_id: RunId,
    request: Request,
    response: Response,
    services: Use,
    caller: CanWrite,
    body: RunRetry | None = None,
) -> RunView:
    """Start a new run from the last checkpoint of one that failed or was cancelled; recorded
    effects are not repeated.
    """
    del body
    started = await retry_run(
        services.db,
        caller.tenant_id,
        run_id,
        created_by=caller.name,
        trace_id=trace_id_of(request),
        actor=caller.actor,
    )
    await announce(services, started)
    response.headers["Location"] = f"/v1/runs/{encode('run', started.run_id)}"
    return run_view(await view_run(services.db, caller.tenant_id, started.run_id))
