"""Doing something to many runs: a look at what it would do, then batch after batch with progress.

The page holds the ids that are left, so that nothing is kept here: leaving the page stops it, and
what was done stays done. A retry skips runs that have one, so that repeating it does nothing twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl
from uuid import UUID

from fastapi import Request, Response

from harness_api.bulk import DEFAULT_STATUS
from harness_api.console import run_filter
from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Services, Use
from harness_api.routes import run_control
from harness_api.routes.runs import get_run, get_runs
from harness_api.schemas.run_control import RunRetry
from harness_api.schemas.runs import RunView
from harness_common.core.errors import Conflict, HarnessError, Invalid, NotFound
from harness_common.core.ids import decode

router = new_pages("/console/runs/bulk")

CanWrite = Annotated[Visit, requires_page("runs:write")]
MOST: Final = 500
"""Runs that one command takes."""
BATCH: Final = 20
"""Runs that one request does."""
_PAGE: Final = 200


@router.post("")
async def preview(services: Use, visit: CanWrite) -> Response:
    """Show what would be done to which runs; nothing is changed."""
    action = _action(visit)
    if visit.form.get("which") == "all":
        found, more = await _matching(services, visit, action)
    else:
        found, more = await _chosen(services, visit), False
    wanted = [run for run in found if run.status in DEFAULT_STATUS[action]]
    return visit.page(
        "bulk.html",
        action=action,
        wanted=wanted,
        kinds=Counter(_kind(run) for run in wanted).most_common(10),
        left_out=Counter(run.status for run in found if run not in wanted).most_common(),
        more=more,
        most=MOST,
        ids=" ".join(run.id for run in wanted),
    )


@router.post("/go")
async def go(services: Use, visit: CanWrite) -> Response:
    """Do the next batch, and answer with how far it is."""
    action, form = _action(visit), visit.form
    left = form.get("ids", "").split()
    if len(left) > MOST:
        raise Invalid(f"{len(left)} runs are more than one command takes", limit=MOST)
    total = min(MOST, int(form["total"])) if form.get("total", "").isdecimal() else len(left)
    made = int(form["made"]) if form.get("made", "").isdecimal() else 0
    notes = form.get("notes", "").split("\n") if form.get("notes") else []
    for run_id in left[:BATCH]:
        note = await _do(services, visit.request, visit, action, run_id)
        if note is None:
            made += 1
        else:
            notes.append(note)
    rest = left[BATCH:]
    values: dict[str, Any] = {
        "action": action, "made": made, "notes": notes[-MOST:], "total": total,
        "done": total - len(rest), "ids": " ".join(rest), "left": len(rest),
    }  # fmt: skip
    if visit.htmx:
        return visit.part("_bulk.html", **values)
    return visit.page("bulk_going.html", **values)


def _action(visit: Visit) -> str:
    action = visit.form.get("action", "")
    if action not in DEFAULT_STATUS:
        raise Invalid(f"action is one of {', '.join(DEFAULT_STATUS)}", field="action", value=action)
    return action


async def _chosen(services: Services, visit: Visit) -> list[RunView]:
    out = []
    for text in visit.all_of("run")[:_PAGE]:
        try:
            out.append(await get_run(decode("run", text), services, visit.caller, 0))
        except NotFound:
            continue
    return out


async def _matching(services: Services, visit: Visit, action: str) -> tuple[list[RunView], bool]:
    filters = run_filter.given(parse_qsl(visit.form.get("query", "")[:2_000]))
    filters.setdefault("status", [*DEFAULT_STATUS[action]])
    if action == "retry":
        filters["retried"] = "false"
        if not filters.get("parent"):  # a retry of their parent goes on with them
            filters["child"] = "false"
    out: list[RunView] = []
    while True:
        query = run_filter.query_of(filters, limit=min(_PAGE, MOST - len(out)))
        found = await get_runs(services, visit.caller, query)
        out += found.data
        if found.next_cursor is None or len(out) >= MOST:
            return out, found.next_cursor is not None
        filters["cursor"] = found.next_cursor


def _kind(run: RunView) -> tuple[str, str]:
    return run.status, (run.error or {}).get("code", "")


async def _do(
    services: Services, request: Request, visit: Visit, action: str, run_id: str
) -> str | None:
    """Do one; return why not, None when it was done."""
    do = _DO[action]
    try:
        await do(decode("run", run_id), services, request, visit)
    except Conflict as error:
        return f"{run_id} skipped: {error.message}"
    except HarnessError as error:
        return f"{run_id[:40]} failed: {error.message}"
    return None


Do = Callable[[UUID, Services, Request, Visit], Awaitable[object]]


async def _retry(run_id: UUID, services: Services, request: Request, visit: Visit) -> object:
    body = RunRetry(if_not_retried=True)
    return await run_control.post_retry(run_id, request, Response(), services, visit.caller, body)


async def _cancel(run_id: UUID, services: Services, _: Request, visit: Visit) -> object:
    return await run_control.post_cancel(run_id, services, visit.caller)


async def _pause(run_id: UUID, services: Services, _: Request, visit: Visit) -> object:
    return await run_control.post_pause(run_id, services, visit.caller)


async def _resume(run_id: UUID, services: Services, _: Request, visit: Visit) -> object:
    return await run_control.post_resume(run_id, services, visit.caller)


_DO: Final[dict[str, Do]] = {
    "cancel": _cancel,
    "retry": _retry,
    "pause": _pause,
    "resume": _resume,
}
