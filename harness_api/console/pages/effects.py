"""Unknown effects: calls of which nobody knows what became, and a person's word about them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.routes import effects
from harness_api.routes.effects import Cursor, Key
from harness_api.schemas.effects import EffectResolve

router = new_pages("/console/effects")

CanRead = Annotated[Visit, requires_page("effects:read")]
CanResolve = Annotated[Visit, requires_page("effects:write")]
LIMIT = 50


@router.get("")
async def effects_page(services: Use, visit: CanRead, cursor: Cursor = None) -> Response:
    """List the calls that a person has to decide about."""
    found = await effects.get_effects(services, visit.caller, limit=LIMIT, cursor=cursor)
    return visit.page(
        "effects.html", effects=found.data, next_cursor=found.next_cursor, cursor=cursor
    )


@router.get("/{run_id}/{call}")
async def effect_page(key: Key, services: Use, visit: CanRead) -> Response:
    """Show one call with the evidence about it."""
    return visit.page("effect.html", one=await effects.get_call(key, services, visit.caller))


@router.post("/{run_id}/{call}/resolve")
async def resolve(key: Key, services: Use, visit: CanResolve) -> Response:
    """Say what became of a call."""
    outcome: Any = visit.form.get("outcome", "")
    body = EffectResolve(
        outcome=outcome,
        reason=visit.form.get("reason", ""),
        result=visit.form.get("result", "").strip() or None,
    )
    one = await effects.post_resolve(body, key, services, visit.caller)
    said = {"succeeded": "it took effect", "failed": "it did not", "run_again": "it runs again"}
    return visit.go("/console/effects", f"Resolved {one.tool}: {said[outcome]}.")
