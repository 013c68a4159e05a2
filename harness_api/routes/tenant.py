"""The tenant of the key: its limits, the workers that serve it, and its audit trail."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.tenant import (
    AuditView,
    TenantLimits,
    TenantLimitsPatch,
    TenantView,
    WorkerView,
)
from harness_common.core.ids import encode
from harness_common.store.audit import list_audit
from harness_common.store.db import Row
from harness_common.store.tenants import list_workers, read_tenant, set_tenant_limits

router = new_router("/v1", "tenant")


def worker_view(row: Row) -> WorkerView:
    """Show a worker process."""
    shown = {name: row[name] for name in WorkerView.model_fields if name != "incarnation"}
    return WorkerView(incarnation=encode("worker", row["incarnation"]), **shown)


def audit_view(row: Row) -> AuditView:
    """Show a row of the audit trail."""
    shown = {name: row[name] for name in AuditView.model_fields if name != "id"}
    return AuditView(id=encode("audit", row["id"]), **shown)


async def _tenant(services: Services, caller: Caller) -> TenantView:
    row = await read_tenant(services.db, caller.tenant_id)
    return TenantView(
        id=encode("tenant", row["tenant_id"]),
        name=row["name"],
        limits=TenantLimits(**{name: row[name] for name in TenantLimits.model_fields}),
        running=row["running"],
        queued=row["queued"],
        slot_seconds=round(row["slot_seconds"], 3),
    )


@router.get("/tenant", operation_id="getTenant", response_model=TenantView)
async def get_tenant(
    services: Use, caller: Annotated[Caller, requires("tenant:read")]
) -> TenantView:
    """Read the tenant of the key."""
    return await _tenant(services, caller)


@router.patch("/tenant/limits", operation_id="setTenantLimits", response_model=TenantView)
async def patch_limits(
    body: TenantLimitsPatch, services: Use, caller: Annotated[Caller, requires("tenant:write")]
) -> TenantView:
    """Change the limits that are named; null takes one off. What runs already goes on."""
    if changes := body.changes():
        await set_tenant_limits(services.db, caller.tenant_id, changes, caller.actor)
    await services.channel.nudge()
    return await _tenant(services, caller)


@router.get("/workers", operation_id="listWorkers", response_model=Page[WorkerView])
async def get_workers(
    services: Use, caller: Annotated[Caller, requires("workers:read")]
) -> Page[WorkerView]:
    """List worker processes, the newest first, those that died within the hour included."""
    del caller
    return Page(data=[worker_view(row) for row in await list_workers(services.db)])


@router.get("/audit", operation_id="listAudit", response_model=Page[AuditView])
async def get_audit(
    services: Use,
    caller: Annotated[Caller, requires("audit:read")],
    limit: Limit = 50,
    cursor: IdCursor = None,
) -> Page[AuditView]:
    """List who changed what, newest first."""
    rows = await list_audit(services.db, caller.tenant_id, before=id_of(cursor), limit=limit + 1)
    data, next_cursor = page(rows, limit, audit_view, "id")
    return Page(data=data, next_cursor=next_cursor)
