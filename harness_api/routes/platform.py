"""What concerns all tenants: the limits over all of them. For keys of an operator's tenant."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.routing import new_router
from harness_api.schemas.tenant import PlatformLimits, PlatformLimitsPatch, PlatformView
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
