"""One run: its timeline, steps, messages, events, checkpoints and relatives, and what may be done.

Long runs are read in pages: a page never holds more than `PAGE` steps with their calls.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import Path, Query, Response

from harness_api.console import run_words, state_diff
from harness_api.console.access import requires_page
from harness_api.console.live import live_stream
from harness_api.console.routing import new_pages
from harness_api.console.timeline import timeline, words_by_step
from harness_api.console.visit import Visit
from harness_api.deps import Services, Use
from harness_api.routes import run_details
from harness_api.routes.ids import RunId
from harness_api.routes.runs import get_run
from harness_api.schemas.runs import EventView, RunView, ToolCallView
from harness_api.sse import event_json
from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.core.run import TERMINAL
from harness_common.store.reads import contents_at
from harness_common.store.run_reads import (
    read_events,
    read_messages_of_steps,
    read_tool_calls,
    view_run,
)

router = new_pages("/console/runs/{run_id}")

CanRead = Annotated[Visit, requires_page("runs:read")]
After = Annotated[int | None, Query(ge=0, lt=2**31)]
PAGE: Final = 50
_CALLS: Final = 500
_TABS: Final = (
    ("", "Timeline"),
    ("/messages", "Messages"),
    ("/events", "Events"),
    ("/checkpoints", "Checkpoints"),
    ("/lineage", "Lineage"),
)


def _frame(visit: Visit, run: RunView, tab: str) -> dict[str, Any]:
    home = f"/console/runs/{run.id}"
    over = run.status in TERMINAL
    return {
        "run": run,
        "seen": run_words.seen(run),
        "why": run_words.why(run),
        "error": run_words.error_line(run),
        "over": over,
        "home": home,
        "tab": tab,
        "tabs": [(f"{home}{path}", title, path) for path, title in _TABS],
        "can": visit.may("runs:write"),
    }


async def _calls(
    services: Services, visit: Visit, run_id: UUID, first: int, last: int
) -> list[ToolCallView]:
    """Read the ledger of some steps."""
    rows = await read_tool_calls(
        services.db,
        visit.caller.tenant_id,
        run_id,
        after=(first, -1),
        to_step=last,
        limit=_CALLS,
    )
    shown = encode("run", run_id)
    return [run_details.tool_call_view(row, shown) for row in rows]


def _answer(visit: Visit, template: str, values: dict[str, Any]) -> Response:
    """Answer with the page, or with its live part when HTMX refreshes it."""
    if visit.htmx:
        return visit.part(f"_{template}", **values)
    return visit.page(template, **values)


def _window(after: int | None, newest: int) -> int:
    """Return after which entry a page begins: without being told, so that it holds the newest."""
    return max(0, newest - PAGE) if after is None else after


@router.get("")
async def run_page(run_id: RunId, services: Use, visit: CanRead, after: After = None) -> Response:
    """Show the timeline of a run."""
    caller, db = visit.caller, services.db
    run = await get_run(run_id, services, caller, 0)
    first = _window(after, run.step)
    found = await run_details.get_steps(run_id, services, caller, PAGE, str(first))
    steps = found.data
    last = steps[-1].step if steps else first
    calls = await _calls(services, visit, run_id, first + 1, last)
    rows = await read_messages_of_steps(
        db, caller.tenant_id, run_id, first=first + 1, last=max(last, first + 1)
    )
    claimed = (await view_run(db, caller.tenant_id, run_id))["claimed_at"]
    shown = timeline(
        steps,
        calls,
        [run_details.message_view(row) for row in rows],
        (claimed, datetime.now(UTC)) if run.worker and claimed else None,
    )
    values = _frame(visit, run, "")
    return _answer(
        visit,
        "run.html",
        values | {"timeline": shown, "first": first, "more": found.next_cursor, "page_size": PAGE},
    )


@router.get("/live")
async def run_live(run_id: RunId, services: Use, visit: CanRead) -> Response:
    """Tell what happens in a run as it happens."""
    await view_run(services.db, visit.caller.tenant_id, run_id)
    return live_stream(services, visit.caller, run_id)


@router.get("/steps/{step}")
async def step_page(
    run_id: RunId, services: Use, visit: CanRead, step: Annotated[int, Path(ge=1, lt=2**31)]
) -> Response:
    """Show all of one step."""
    caller = visit.caller
    run = await get_run(run_id, services, caller, 0)
    found = await run_details.get_steps(run_id, services, caller, 1, str(step - 1))
    if not found.data or found.data[0].step != step:
        raise NotFound(f"{run.id} has no committed step {step}; it has {run.step}")
    calls = await _calls(services, visit, run_id, step, step)
    rows = await read_messages_of_steps(
        services.db, caller.tenant_id, run_id, first=step, last=step
    )
    checkpoint = await run_details.get_checkpoints(run_id, services, caller, 1, str(step - 1))
    attempts = await run_details.get_attempts(run_id, services, caller, 1000)
    messages = [run_details.message_view(row) for row in rows]
    values = _frame(visit, run, "")
    return visit.page(
        "step.html",
        **values,
        step=found.data[0],
        calls=calls,
        messages=messages,
        answer=words_by_step(messages).get(step, ""),
        checkpoint=checkpoint.data[0],
        attempts=[a for a in attempts.data if a.step == step],
    )


@router.get("/messages")
async def messages_page(
    run_id: RunId, services: Use, visit: CanRead, after: After = None
) -> Response:
    """Show a run's conversation."""
    run = await get_run(run_id, services, visit.caller, 0)
    row = await view_run(services.db, visit.caller.tenant_id, run_id)
    first = _window(after, row["messages"])
    found = await run_details.get_messages(run_id, services, visit.caller, PAGE, str(first))
    values = _frame(visit, run, "/messages")
    more = found.next_cursor
    return _answer(
        visit,
        "run_messages.html",
        values | {"messages": found.data, "first": first, "more": more, "page_size": PAGE},
    )


@router.get("/events")
async def events_page(
    run_id: RunId, services: Use, visit: CanRead, after: After = None
) -> Response:
    """Show a run's event log."""
    run = await get_run(run_id, services, visit.caller, 0)
    row = await view_run(services.db, visit.caller.tenant_id, run_id)
    size = 2 * PAGE
    first = max(0, row["next_seq"] - 1 - size) if after is None else after
    tenant_id = visit.caller.tenant_id
    page = await read_events(services.db, tenant_id, run_id, after=first, limit=size)
    found = [EventView(**event_json(event)) for event in page.events]
    values = _frame(visit, run, "/events")
    last = first + len(found)
    more = last if last < row["next_seq"] - 1 else None
    return _answer(
        visit,
        "run_events.html",
        values | {"lines": run_words.lines(found), "first": first, "more": more, "page_size": size},
    )


@router.get("/checkpoints")
async def checkpoints_page(
    run_id: RunId,
    services: Use,
    visit: CanRead,
    after: After = None,
    a: After = None,
    b: After = None,
) -> Response:
    """Show a run's checkpoints, and what differs between two of them."""
    run = await get_run(run_id, services, visit.caller, 0)
    first = _window(after, run.step)
    found = await run_details.get_checkpoints(run_id, services, visit.caller, PAGE, str(first))
    values = _frame(visit, run, "/checkpoints")
    compared = None
    if a is not None and b is not None:
        before, then = await contents_at(services.db, visit.caller.tenant_id, run_id, [a, b])
        compared = state_diff.changes(before, then)
    return visit.page(
        "run_checkpoints.html",
        **values,
        checkpoints=found.data,
        first=first,
        more=found.next_cursor,
        page_size=PAGE,
        compared=compared,
        chosen=_chosen([point.step for point in found.data], a, b),
        a=a,
        b=b,
        most=state_diff.MOST,
    )


def _chosen(steps: list[int], a: int | None, b: int | None) -> tuple[int | None, int | None]:
    """Return which two checkpoints the form offers: those compared, else the last two."""
    newest = steps[-1] if steps else None
    before = steps[-2] if len(steps) > 1 else newest
    return (before if a is None else a, newest if b is None else b)


@router.get("/lineage")
async def lineage_page(run_id: RunId, services: Use, visit: CanRead) -> Response:
    """Show where a run comes from and what came of it."""
    run = await get_run(run_id, services, visit.caller, 0)
    found = await run_details.get_lineage(run_id, services, visit.caller)
    values = _frame(visit, run, "/lineage")
    return visit.page("run_lineage.html", **values, lineage=found)
