"""What people ask of a run from its page: the same as by the routes under /v1, which do it."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.routes import run_control
from harness_api.routes.ids import RunId
from harness_api.schemas.run_control import (
    RunCancel,
    RunFork,
    RunInput,
    RunMessage,
    RunPause,
    RunRetry,
)
from harness_common.core.ids import encode

router = new_pages("/console/runs/{run_id}")

CanWrite = Annotated[Visit, requires_page("runs:write")]


def _to(run_id: str) -> str:
    return f"/console/runs/{quote(run_id)}"


@router.post("/cancel")
async def cancel(run_id: RunId, services: Use, visit: CanWrite) -> Response:
    """Ask a run to stop."""
    body = RunCancel(reason=visit.form.get("reason", ""))
    run = await run_control.post_cancel(run_id, services, visit.caller, body)
    said = "Cancelled." if run.status == "cancelled" else "Asked to stop."
    return visit.go(_to(run.id), said)


@router.post("/pause")
async def pause(run_id: RunId, services: Use, visit: CanWrite) -> Response:
    """Ask a run to rest."""
    body = RunPause(reason=visit.form.get("reason", ""))
    run = await run_control.post_pause(run_id, services, visit.caller, body)
    said = "Paused." if run.status == "paused" else "Asked to rest after the step under way."
    return visit.go(_to(run.id), said)


@router.post("/resume")
async def resume(run_id: RunId, services: Use, visit: CanWrite) -> Response:
    """Let a paused run go on."""
    run = await run_control.post_resume(run_id, services, visit.caller)
    return visit.go(_to(run.id), "It goes on.")


@router.post("/answer")
async def answer(run_id: RunId, services: Use, visit: CanWrite) -> Response:
    """Answer a question of a run."""
    body = RunInput(text=visit.form.get("text", ""), call=visit.form.get("call") or None)
    run = await run_control.post_input(body, run_id, services, visit.caller)
    return visit.go(_to(run.id), "Answered.")


@router.post("/steer")
async def steer(run_id: RunId, services: Use, visit: CanWrite) -> Response:
    """Give a run a message that its next model step sees."""
    body = RunMessage(text=visit.form.get("text", ""))
    run = await run_control.post_message(body, run_id, services, visit.caller)
    return visit.go(_to(run.id), "The next model step sees your message.")


@router.post("/fork")
async def fork(run_id: RunId, services: Use, visit: CanWrite) -> Response:
    """Start a new run from a checkpoint of this one."""
    form = visit.form
    given: dict[str, Any] = {"dry_run": "dry_run" in form}
    if form.get("step"):
        given["step"] = int(form["step"]) if form["step"].isdecimal() else form["step"]
    given |= {name: form[name] for name in ("input", "model") if form.get(name, "").strip()}
    made = Response()
    run = await run_control.post_fork(
        run_id, visit.request, made, services, visit.caller, RunFork(**given)
    )
    return visit.go(_to(run.id), f"Forked from {encode('run', run_id)}.")


@router.post("/retry")
async def retry(run_id: RunId, services: Use, visit: CanWrite) -> Response:
    """Start a new run from the last checkpoint of one that failed or was cancelled."""
    step = visit.form.get("from_step", "")
    body = RunRetry(from_step=int(step) if step.isdecimal() else None)
    made = Response()
    run = await run_control.post_retry(run_id, visit.request, made, services, visit.caller, body)
    return visit.go(_to(run.id), f"Retries {encode('run', run_id)}.")
