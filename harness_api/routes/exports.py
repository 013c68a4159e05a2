"""Exports: the whole history of a run, or all that there is of a user or of the tenant."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from starlette.responses import Response, StreamingResponse

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.export_stream import ANSWER, answer
from harness_api.routes.ids import RunId
from harness_api.routing import new_router
from harness_common.core.errors import Denied
from harness_common.core.ids import encode
from harness_common.store.export import Exporter

router = new_router("/v1", "export")

Content = Annotated[bool, Query(description="With the bytes of artifacts.")]
_FILES: Final = "artifacts:read"


def _exporter(services: Services, caller: Caller, *, content: bool) -> Exporter:
    if content and _FILES not in caller.permissions:
        raise Denied(
            f"this key lacks the permission {_FILES}: ask with content=false", permission=_FILES
        )
    return Exporter(services.db, services.blobs, caller.tenant_id, content)


@router.get(
    "/runs/{run_id}/export",
    operation_id="exportRun",
    response_class=Response,
    responses=ANSWER,
)
async def get_run_export(
    run_id: RunId,
    services: Use,
    caller: Annotated[Caller, requires("runs:read")],
    content: Content = True,
) -> StreamingResponse:
    """Export a run: itself, its relatives, inputs, messages, checkpoints, events, calls, approvals
    and artifacts.
    """
    shown = encode("run", run_id)
    records = _exporter(services, caller, content=content).run(run_id)
    return await answer(shown, {"run": shown}, records)


@router.get("/export", operation_id="exportData", response_class=Response, responses=ANSWER)
async def get_export(
    services: Use,
    caller: Annotated[Caller, requires("data:read")],
    user_id: Annotated[
        str | None, Query(min_length=1, max_length=200, description="Of one user only.")
    ] = None,
    content: Content = True,
) -> StreamingResponse:
    """Export all that there is of the tenant, or of one of its users."""
    exporter = _exporter(services, caller, content=content)
    tenant = encode("tenant", caller.tenant_id)
    if user_id is None:
        return await answer(tenant, {"tenant": tenant}, exporter.tenant())
    return await answer("user", {"tenant": tenant, "user": user_id}, exporter.user(user_id))
