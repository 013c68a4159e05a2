"""Exports: the whole history of a run, or all that there is of a user or of the tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
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
from harness_common.store.audit import Entry, record
from harness_common.store.export import Exporter, Record

router = new_router("/v1", "export")

Content = Annotated[bool, Query(description="With the bytes of artifacts.")]
_FILES: Final = "artifacts:read"


def _exporter(services: Services, caller: Caller, *, content: bool) -> Exporter:
    if content and _FILES not in caller.permissions:
        raise Denied(
            f"this key lacks the permission {_FILES}: ask with content=false", permission=_FILES
        )
    return Exporter(services.db, services.blobs, caller.tenant_id, content)


async def _answer(
    services: Services,
    caller: Caller,
    entry: Entry,
    subject: dict[str, str],
    records: AsyncIterator[Record],
) -> StreamingResponse:
    """Answer with an export, and say in the audit trail who took what."""
    first = await anext(records, None)  # what cannot be read at all is refused and leaves no entry
    async with services.db.tenant_transaction(caller.tenant_id) as conn:
        record(conn, caller.tenant_id, caller.actor, entry)
    name = "user" if "user" in subject else entry.target
    return answer(name, subject, records, first)


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
    entry = Entry("run.export", shown, {"content": content})
    return await _answer(services, caller, entry, {"run": shown}, records)


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
        entry = Entry("tenant.export", tenant, {"content": content})
        return await _answer(services, caller, entry, {"tenant": tenant}, exporter.tenant())
    entry = Entry("user.export", tenant, {"content": content, "user_id": user_id})
    subject = {"tenant": tenant, "user": user_id}
    return await _answer(services, caller, entry, subject, exporter.user(user_id))
