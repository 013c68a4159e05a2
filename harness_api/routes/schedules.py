"""Schedules: make, read, change, pause, fire by hand, and what became of their firings."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, Final

from fastapi import Path, Query, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.announce import announce
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.schedules import (
    FiringView,
    ScheduleCreate,
    ScheduleLinks,
    SchedulePatch,
    SchedulePause,
    ScheduleTrigger,
    ScheduleView,
)
from harness_common.core.errors import Denied
from harness_common.core.ids import encode
from harness_common.core.schedule import Overlap, coming, when_to_json
from harness_common.firing import Fired, trigger
from harness_common.store import schedules as store
from harness_common.store.connection import Row

router = new_router("/v1/schedules", "schedules")

CanRead = Annotated[Caller, requires("schedules:read")]
CanWrite = Annotated[Caller, requires("schedules:write")]
Ref = Annotated[
    str,
    Path(
        alias="schedule",
        pattern=r"^(sched_[0-9a-f]{32}|[a-z0-9][a-z0-9_.-]{0,63})$",
        description="Its name or its id.",
    ),
]
TimeCursor = Annotated[str | None, Query(pattern="^[0-9]{1,17}$")]
PREVIEW: Final = 5
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT: Final = timedelta(microseconds=1)


def schedule_view(row: Row) -> ScheduleView:
    """Show a schedule; `row` has Postgres time as `now` beside the columns."""
    found = store.definition_from_json(row["spec"])
    paused, ended = row["paused_at"] is not None, row["next_at"] is None and not row["waiting"]
    left = PREVIEW if found.max_firings is None else max(0, found.max_firings - row["firings"])
    pending = row["next_at"] is not None and row["next_at"] > row["now"]
    after = row["last_at"] if pending else row["now"]
    times = [] if paused or ended else coming(found.plan(row["id"]), after)
    ref = f"/v1/schedules/{row['name']}"
    return ScheduleView(
        id=encode("schedule", row["id"]),
        name=row["name"],
        status="paused" if paused else "ended" if ended else "active",
        when=when_to_json(found.when),
        run=dict(found.run),
        overlap=found.overlap.value,
        catch_up=found.catch_up.value,
        window_s=found.window_s,
        jitter_s=found.jitter_s,
        starts_at=found.starts_at,
        ends_at=found.ends_at,
        max_firings=found.max_firings,
        firings=row["firings"],
        waiting=row["waiting"],
        next_at=row["next_at"],
        next=list(islice(times, min(PREVIEW, left))),
        paused_at=row["paused_at"],
        pause_reason=row["pause_reason"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        updated_at=row["updated_at"],
        links=ScheduleLinks(
            self=ref, firings=f"{ref}/firings", runs=f"/v1/runs?tag=schedule:{row['name']}"
        ),
    )


def firing_view(row: Row) -> FiringView:
    """Show a firing."""
    detail = row["detail"]
    return FiringView(
        at=row["at"],
        outcome=row["outcome"],
        run_id=encode("run", row["run_id"]) if row["run_id"] else None,
        reason=detail.get("reason"),
        until=datetime.fromisoformat(detail["until"]) if "until" in detail else None,
        triggered_by=detail.get("by"),
        created_at=row["created_at"],
    )


def _may_start(caller: Caller) -> None:
    """Let nobody start runs by way of a schedule who may not start them."""
    if "runs:write" not in caller.permissions:
        raise Denied(
            "a schedule starts runs: this key lacks the permission runs:write",
            permission="runs:write",
        )


@router.post("", status_code=201, operation_id="createSchedule", response_model=ScheduleView)
async def post_schedule(
    body: ScheduleCreate, response: Response, services: Use, caller: CanWrite
) -> ScheduleView:
    """Make a schedule. Its firings start runs as long as it exists, whatever becomes of the key."""
    _may_start(caller)
    row = await store.create_schedule(
        services.db,
        caller.tenant_id,
        body.name,
        body.definition,
        paused=body.paused,
        actor=caller.actor,
    )
    await services.channel.nudge()
    response.headers["Location"] = f"/v1/schedules/{row['name']}"
    return schedule_view(row)


@router.get("", operation_id="listSchedules", response_model=Page[ScheduleView])
async def get_schedules(
    services: Use, caller: CanRead, limit: Limit = 50, cursor: IdCursor = None
) -> Page[ScheduleView]:
    """List schedules, newest first."""
    rows = await store.list_schedules(
        services.db, caller.tenant_id, before=id_of(cursor), limit=limit + 1
    )
    data, next_cursor = page(rows, limit, schedule_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{schedule}", operation_id="getSchedule", response_model=ScheduleView)
async def get_schedule(ref: Ref, services: Use, caller: CanRead) -> ScheduleView:
    """Read a schedule."""
    return schedule_view(await store.read_schedule(services.db, caller.tenant_id, ref))


@router.patch("/{schedule}", operation_id="updateSchedule", response_model=ScheduleView)
async def patch_schedule(
    ref: Ref, services: Use, caller: CanWrite, body: SchedulePatch | None = None
) -> ScheduleView:
    """Change a schedule. New times count from now; runs that are going go on."""
    _may_start(caller)
    given = body or SchedulePatch()

    def change(old: store.Definition, now: datetime) -> store.Definition:
        return replace(old, **given.changes(now))

    row = await store.change_schedule(services.db, caller.tenant_id, ref, change, caller.actor)
    await services.channel.nudge()
    return schedule_view(row)


@router.delete("/{schedule}", status_code=204, operation_id="deleteSchedule")
async def remove_schedule(ref: Ref, services: Use, caller: CanWrite) -> None:
    """Remove a schedule with the record of its firings; its runs stay and go on."""
    await store.delete_schedule(services.db, caller.tenant_id, ref, caller.actor)


@router.post("/{schedule}/pause", operation_id="pauseSchedule", response_model=ScheduleView)
async def post_pause(
    ref: Ref, services: Use, caller: CanWrite, body: SchedulePause | None = None
) -> ScheduleView:
    """Let nothing fire until it is resumed. Safe to repeat."""
    reason = body.reason if body else ""
    row = await store.pause_schedule(services.db, caller.tenant_id, ref, reason, caller.actor)
    return schedule_view(row)


@router.post("/{schedule}/resume", operation_id="resumeSchedule", response_model=ScheduleView)
async def post_resume(ref: Ref, services: Use, caller: CanWrite) -> ScheduleView:
    """Let it fire again from now on; what fell into the pause is dropped. Safe to repeat."""
    row = await store.resume_schedule(services.db, caller.tenant_id, ref, caller.actor)
    await services.channel.nudge()
    return schedule_view(row)


@router.post(
    "/{schedule}/trigger",
    status_code=202,
    operation_id="triggerSchedule",
    response_model=FiringView,
)
async def post_trigger(
    ref: Ref, services: Use, caller: CanWrite, body: ScheduleTrigger | None = None
) -> FiringView:
    """Fire now, also when paused; its times stay as they are. The answer says what came of it:
    with the overlap policy `skip` nothing starts while a run is going.
    """
    _may_start(caller)
    row = await store.read_schedule(services.db, caller.tenant_id, ref)
    wanted = Overlap(body.overlap) if body and body.overlap else None
    fired = await trigger(
        services.db, caller.tenant_id, row["id"], overlap=wanted, actor=caller.actor
    )
    await _announce(services, fired)
    return FiringView(
        at=fired.at,
        outcome=fired.outcome.value,
        run_id=encode("run", fired.run.run_id) if fired.run else None,
        reason=fired.reason,
        until=None,
        triggered_by=caller.name,
        created_at=fired.at,
    )


async def _announce(services: Services, fired: Fired) -> None:
    """Let the run begin, and tell those that it replaces to stop. A lost signal costs seconds."""
    if fired.run is not None:
        await announce(services, fired.run)
    for run_id, worker in fired.stopped:
        if worker is not None:
            await services.channel.cancel(worker, run_id)


@router.get(
    "/{schedule}/firings", operation_id="listScheduleFirings", response_model=Page[FiringView]
)
async def get_firings(
    ref: Ref, services: Use, caller: CanRead, limit: Limit = 50, cursor: TimeCursor = None
) -> Page[FiringView]:
    """List what became of its firings, newest first; they are kept for 90 days by default."""
    before = _EPOCH + int(cursor) * _MOMENT if cursor else None
    rows = await store.list_firings(
        services.db, caller.tenant_id, ref, before=before, limit=limit + 1
    )
    rows = [row | {"n": (row["at"] - _EPOCH) // _MOMENT} for row in rows]
    data, next_cursor = page(rows, limit, firing_view, "n")
    return Page(data=data, next_cursor=next_cursor)
