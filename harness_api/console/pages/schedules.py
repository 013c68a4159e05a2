"""Schedules: when runs start by themselves, and what became of it; pausing, firing by hand."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor
from harness_api.routes import schedules
from harness_api.routes.schedules import Ref, TimeCursor
from harness_api.schemas.schedules import SchedulePause

router = new_pages("/console/schedules")

CanRead = Annotated[Visit, requires_page("schedules:read")]
CanWrite = Annotated[Visit, requires_page("schedules:write")]
LIMIT = 50


@router.get("")
async def schedules_page(services: Use, visit: CanRead, cursor: IdCursor = None) -> Response:
    """List schedules with their next firings."""
    found = await schedules.get_schedules(services, visit.caller, limit=LIMIT, cursor=cursor)
    return visit.page(
        "schedules.html", schedules=found.data, next_cursor=found.next_cursor, cursor=cursor
    )


@router.get("/{schedule}")
async def schedule_page(
    ref: Ref, services: Use, visit: CanRead, cursor: TimeCursor = None
) -> Response:
    """Show a schedule and what became of its firings."""
    one = await schedules.get_schedule(ref, services, visit.caller)
    found = await schedules.get_firings(ref, services, visit.caller, limit=LIMIT, cursor=cursor)
    return visit.page(
        "schedule.html",
        one=one,
        firings=found.data,
        next_cursor=found.next_cursor,
        cursor=cursor,
    )


@router.post("/{schedule}/pause")
async def pause(ref: Ref, services: Use, visit: CanWrite) -> Response:
    """Let nothing fire until it is resumed."""
    body = SchedulePause(reason=visit.form.get("reason", ""))
    one = await schedules.post_pause(ref, services, visit.caller, body)
    return visit.go(f"/console/schedules/{one.name}", "Paused: nothing fires until it is resumed.")


@router.post("/{schedule}/resume")
async def resume(ref: Ref, services: Use, visit: CanWrite) -> Response:
    """Let it fire again."""
    one = await schedules.post_resume(ref, services, visit.caller)
    return visit.go(f"/console/schedules/{one.name}", "It fires again from now on.")


@router.post("/{schedule}/trigger")
async def trigger(ref: Ref, services: Use, visit: CanWrite) -> Response:
    """Fire now."""
    fired = await schedules.post_trigger(ref, services, visit.caller)
    one = await schedules.get_schedule(ref, services, visit.caller)
    said = "Fired: a run was started." if fired.run_id else f"Fired: {fired.outcome}."
    return visit.go(f"/console/schedules/{one.name}", said)
