"""Where a tenant's own requests may go: tools, webhooks, MCP servers."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routing import new_router
from harness_api.schemas.tools import EgressPut, EgressView
from harness_common.core.host_rules import HostRules, read_entries
from harness_common.store.connection import Row
from harness_common.store.tools import read_egress, set_egress

router = new_router("/v1/egress", "egress")


def egress_view(row: Row) -> EgressView:
    """Show the rules."""
    return EgressView(**{name: row[name] for name in EgressView.model_fields})


@router.get("", operation_id="getEgress", response_model=EgressView)
async def get_egress(
    services: Use, caller: Annotated[Caller, requires("egress:read")]
) -> EgressView:
    """Read where requests may go."""
    return egress_view(await read_egress(services.db, caller.tenant_id))


@router.put("", operation_id="setEgress", response_model=EgressView)
async def put_egress(
    body: EgressPut, services: Use, caller: Annotated[Caller, requires("egress:write")]
) -> EgressView:
    """Replace where requests may go; workers go by it within a second."""
    rules = HostRules(read_entries(body.allow, "allow"), read_entries(body.deny, "deny"))
    return egress_view(await set_egress(services.db, caller.tenant_id, rules, caller.actor))
