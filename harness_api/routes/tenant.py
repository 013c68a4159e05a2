"""The tenant of the key: its limits, the workers that serve it, and its audit trail."""

from __future__ import annotations

import contextlib
from typing import Annotated
from uuid import UUID

from fastapi import Query

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import Limit, id_of, page
from harness_api.routes.ids import WorkerId
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.tenant import (
    AuditQuery,
    AuditView,
    TenantLimits,
    TenantLimitsPatch,
    TenantView,
    WorkerRunView,
    WorkerView,
)
from harness_common.coord.lease import leases_left_s
from harness_common.coord.redis import RedisFault
from harness_common.core.ids import encode
from harness_common.core.phase import shown
from harness_common.core.run import Status
from harness_common.store.audit_reads import list_audit
from harness_common.store.connection import Row
from harness_common.store.tenants import list_workers, read_tenant, set_tenant_limits
from harness_common.store.worker_runs import list_held_runs

router = new_router("/v1", "tenant")


def worker_view(row: Row) -> WorkerView:
    """Show a worker process."""
    kept = {name: row[name] for name in WorkerView.model_fields if name != "incarnation"}
    return WorkerView(incarnation=encode("worker", row["incarnation"]), **kept)


def worker_run_view(row: Row, lease_left_s: float | None) -> WorkerRunView:
    """Show a run that a worker process holds."""
    return WorkerRunView(
        run_id=encode("run", row["id"]),
        agent=row["agent_name"],
        status=shown(Status(row["status"]), row["cancel_requested"]),
        step=row["step"],
        next_kind=row["next_kind"],
        attempt=row["attempt"],
        claimed_at=row["claimed_at"],
        held_s=round(row["held_s"], 3),
        lease_left_s=lease_left_s,
    )


def audit_view(row: Row) -> AuditView:
    """Show a row of the audit trail."""
    kept = {name: row[name] for name in AuditView.model_fields if name != "id"}
    return AuditView(id=encode("audit", row["id"]), **kept)


def tenant_view(row: Row) -> TenantView:
    """Show a tenant with its limits."""
    return TenantView(
        id=encode("tenant", row["tenant_id"]),
        name=row["name"],
        limits=TenantLimits(**{name: row[name] for name in TenantLimits.model_fields}),
        running=row["running"],
        queued=row["queued"],
        slot_seconds=round(row["slot_seconds"], 3),
    )


async def _tenant(services: Services, caller: Caller) -> TenantView:
    return tenant_view(await read_tenant(services.db, caller.tenant_id))


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


@router.get(
    "/workers/{worker_id}/runs", operation_id="listWorkerRuns", response_model=Page[WorkerRunView]
)
async def get_worker_runs(
    worker_id: WorkerId,
    services: Use,
    caller: Annotated[Caller, requires("runs:read")],
    limit: Limit = 50,
) -> Page[WorkerRunView]:
    """List the tenant's runs that a worker process works on now, the longest held first."""
    rows = await list_held_runs(services.db, caller.tenant_id, worker_id, limit=limit)
    left: dict[UUID, float | None] = {}
    with contextlib.suppress(*RedisFault):
        prefix = services.config.redis.prefix
        left = await leases_left_s(services.redis, prefix, [row["id"] for row in rows])
    return Page(data=[worker_run_view(row, left.get(row["id"])) for row in rows])


@router.get("/audit", operation_id="listAudit", response_model=Page[AuditView])
async def get_audit(
    services: Use,
    caller: Annotated[Caller, requires("audit:read")],
    query: Annotated[AuditQuery, Query()],
) -> Page[AuditView]:
    """List who changed what, newest first."""
    rows = await list_audit(
        services.db,
        caller.tenant_id,
        query.wanted(),
        before=id_of(query.cursor),
        limit=query.limit + 1,
    )
    data, next_cursor = page(rows, query.limit, audit_view, "id")
    return Page(data=data, next_cursor=next_cursor)
