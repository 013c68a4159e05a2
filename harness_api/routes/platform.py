"""What concerns all tenants: the limits over all of them. For keys of an operator's tenant."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.ids import TenantId
from harness_api.routes.tenant import tenant_view
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.tenant import (
    PlatformLimits,
    PlatformLimitsPatch,
    PlatformView,
    TenantLimitsPatch,
    TenantView,
)
from harness_common.store.platform_tenants import list_tenants, read_tenant_of, set_limits_of
from harness_common.store.tenants import read_platform, set_platform_limits

router = new_router("/v1/platform", "platform")


async def _platform(services: Services) -> PlatformView:
    row = await read_platform(services.db)
    return PlatformView(
        limits=PlatformLimits(**{name: row[name] for name in PlatformLimits.model_fields}),
        running=row["running"],
        queued=row["queued"],
    )


@router.get("/limits", operation_id="getPlatformLimits", response_model=PlatformView)
async def get_limits(
    services: Use, caller: Annotated[Caller, requires("platform:read")]
) -> PlatformView:
    """Read the limits over all tenants."""
    del caller
    return await _platform(services)


@router.patch("/limits", operation_id="setPlatformLimits", response_model=PlatformView)
async def patch_limits(
    body: PlatformLimitsPatch, services: Use, caller: Annotated[Caller, requires("platform:write")]
) -> PlatformView:
    """Change the limits that are named; null takes one off. What runs already goes on."""
    if changes := body.changes():
        await set_platform_limits(services.db, caller.tenant_id, changes, caller.actor)
        await services.channel.nudge()
    return await _platform(services)


@router.get("/tenants", operation_id="listTenants", response_model=Page[TenantView])
async def get_tenants(
    services: Use,
    caller: Annotated[Caller, requires("platform:read")],
    limit: Limit = 50,
    cursor: IdCursor = None,
) -> Page[TenantView]:
    """List tenants with their limits and what they have going, newest first."""
    rows = await list_tenants(services.db, caller.tenant_id, before=id_of(cursor), limit=limit + 1)
    data, next_cursor = page(rows, limit, tenant_view, "tenant_id")
    return Page(data=data, next_cursor=next_cursor)


@router.patch(
    "/tenants/{tenant_id}/limits", operation_id="setLimitsOfTenant", response_model=TenantView
)
async def patch_tenant_limits(
    tenant_id: TenantId,
    body: TenantLimitsPatch,
    services: Use,
    caller: Annotated[Caller, requires("platform:write")],
) -> TenantView:
    """Change the limits of a tenant that are named; null takes one off. What runs already goes on.
    The tenant's audit trail says that an operator did it.
    """
    if changes := body.changes():
        await set_limits_of(services.db, caller.tenant_id, tenant_id, changes, caller.actor)
        await services.channel.nudge()
    return tenant_view(await read_tenant_of(services.db, caller.tenant_id, tenant_id))
