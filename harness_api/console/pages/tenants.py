"""Limits: of the tenant, and for whoever runs the platform of all tenants and of each."""

from __future__ import annotations

import re
from typing import Annotated, Any

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor
from harness_api.routes import platform, tenant
from harness_api.routes.ids import TenantId
from harness_api.schemas.tenant import (
    PlatformLimits,
    PlatformLimitsPatch,
    TenantLimits,
    TenantLimitsPatch,
)
from harness_common.core.errors import Invalid
from harness_common.core.ids import encode
from harness_common.store.platform_tenants import read_tenant_of

router = new_pages("/console/tenants")

CanRead = Annotated[Visit, requires_page("tenant:read")]
CanWrite = Annotated[Visit, requires_page("tenant:write")]
IsOperator = Annotated[Visit, requires_page("platform:read")]
OperatorWrites = Annotated[Visit, requires_page("platform:write")]
LIMIT = 50
_HERE = "/console/tenants"
_THOUSANDS = re.compile(r"\d{1,3}(,\d{3})+(\.\d*)?")
_WHOLE = frozenset({"max_running", "tokens_per_day"})
_ALWAYS = frozenset({"weight", "max_running"})
"""Limits that a tenant always has."""


def changes_of(visit: Visit, names: Any, always: frozenset[str]) -> dict[str, Any]:  # noqa: ANN401
    """Read the limits of a form: an empty field takes a limit off, if it is one that may be off.
    Raises `Invalid` for what is no number.
    """
    out: dict[str, Any] = {}
    for name in names:
        text = visit.form.get(name, "").strip()
        if name not in visit.form or (not text and name in always):
            continue
        # A comma stands between thousands or nowhere: "1,5" is not fifteen.
        plain = text.replace(",", "") if _THOUSANDS.fullmatch(text) else text
        try:
            number = float(plain) if text else None
        except ValueError:
            raise Invalid(f"{name} takes a number, not {text[:40]!r}", field=name) from None
        if number is not None and name in _WHOLE and not number.is_integer():
            raise Invalid(f"{name} takes a whole number, not {text[:40]!r}", field=name)
        out[name] = int(number) if number is not None and name in _WHOLE else number
    return out


@router.get("")
async def tenants_page(services: Use, visit: CanRead, cursor: IdCursor = None) -> Response:
    """Show the limits of the tenant; to an operator those of all and of each."""
    mine = await tenant.get_tenant(services, visit.caller)
    over_all, found = None, None
    if visit.may("platform:read"):
        over_all = await platform.get_limits(services, visit.caller)
        found = await platform.get_tenants(services, visit.caller, limit=LIMIT, cursor=cursor)
    return visit.page(
        "tenants.html",
        mine=mine,
        platform=over_all,
        tenants=found.data if found else [],
        next_cursor=found.next_cursor if found else None,
        cursor=cursor,
    )


@router.post("/limits")
async def set_mine(services: Use, visit: CanWrite) -> Response:
    """Change the limits of the tenant of the key."""
    body = TenantLimitsPatch(**changes_of(visit, TenantLimits.model_fields, _ALWAYS))
    await tenant.patch_limits(body, services, visit.caller)
    return visit.go(_HERE, "Changed. What runs already goes on.")


@router.post("/platform/limits")
async def set_platform(services: Use, visit: OperatorWrites) -> Response:
    """Change the limits over all tenants."""
    body = PlatformLimitsPatch(**changes_of(visit, PlatformLimits.model_fields, frozenset()))
    await platform.patch_limits(body, services, visit.caller)
    return visit.go(_HERE, "Changed for all tenants together.")


@router.get("/{tenant_id}")
async def tenant_page(tenant_id: TenantId, services: Use, visit: IsOperator) -> Response:
    """Show one tenant to an operator."""
    row = await read_tenant_of(services.db, visit.caller.tenant_id, tenant_id)
    return visit.page("tenant.html", one=tenant.tenant_view(row))


@router.post("/{tenant_id}/limits")
async def set_one(tenant_id: TenantId, services: Use, visit: OperatorWrites) -> Response:
    """Change the limits of any tenant."""
    body = TenantLimitsPatch(**changes_of(visit, TenantLimits.model_fields, _ALWAYS))
    one = await platform.patch_tenant_limits(tenant_id, body, services, visit.caller)
    shown = encode("tenant", tenant_id)
    return visit.go(f"{_HERE}/{shown}", f"Changed the limits of {one.name}.")
