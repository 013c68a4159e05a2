"""Throttled providers: who is held back until when, at what pace, and why."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.throttles import ThrottleView
from harness_common.store.connection import Row
from harness_common.store.throttles import list_throttles

router = new_router("/v1", "throttles")


def throttle_view(row: Row) -> ThrottleView:
    """Show a throttle; its scope is `provider:model:credential`, and a model may have colons."""
    provider, _, rest = row["scope"].partition(":")
    model, _, credential = rest.rpartition(":")
    return ThrottleView(provider=provider, model=model, credential=credential, **row)


@router.get("/throttles", operation_id="listThrottles", response_model=Page[ThrottleView])
async def get_throttles(
    services: Use, caller: Annotated[Caller, requires("workers:read")]
) -> Page[ThrottleView]:
    """List the throttles that hold now, the longest first."""
    rows = await list_throttles(services.db, caller.tenant_id)
    return Page(data=[throttle_view(row) for row in rows])
