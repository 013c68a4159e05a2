"""Circuit breakers of a tenant's tools: which tools fail now, and closing a breaker by hand."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.tool_breakers import BreakerView
from harness_common.store.breakers import list_breakers, reset_breaker
from harness_common.store.connection import Row

router = new_router("/v1/tools", "tools")

Name = Annotated[str, Path(pattern="^[a-zA-Z0-9_.-]{1,128}$", description="The tool's name.")]


def breaker_view(row: Row) -> BreakerView:
    """Show a breaker; `shown` is its state for people."""
    names = set(BreakerView.model_fields) - {"state"}
    return BreakerView(state=row["shown"], **{name: row[name] for name in names})


@router.get("/breakers", operation_id="listBreakers", response_model=Page[BreakerView])
async def get_breakers(
    services: Use, caller: Annotated[Caller, requires("workers:read")]
) -> Page[BreakerView]:
    """List the tools that failed lately, those that are not called now first."""
    rows = await list_breakers(services.db, caller.tenant_id)
    return Page(data=[breaker_view(row) for row in rows])


@router.post("/breakers/{tool}/reset", operation_id="resetBreaker", response_model=BreakerView)
async def post_reset(
    tool: Name, services: Use, caller: Annotated[Caller, requires("agents:write")]
) -> BreakerView:
    """Forget the faults of a tool: it is called again at once. 404 when none are known."""
    row = await reset_breaker(services.db, caller.tenant_id, tool, actor=caller.actor)
    # Workers that do not hear it try the tool at the end of its time, and learn it then.
    await services.channel.breaker({"tenant_id": caller.tenant_id.hex, "tool": tool})
    return breaker_view({**row, "shown": "closed", "failures": 0, "successes": 0, "until": None})
