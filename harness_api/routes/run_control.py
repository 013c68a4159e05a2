"""What people ask of a run under way, and new runs from its checkpoints."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Request, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.routes.announce import announce, announce_cancel, announce_change, trace_id_of
from harness_api.routes.ids import RunId
from harness_api.routes.run_view import run_view
from harness_api.routing import new_router
from harness_api.schemas.run_control import (
    RunCancel,
    RunFork,
    RunInput,
    RunMessage,
    RunPause,
    RunRetry,
)
from harness_api.schemas.runs import RunView
from harness_common.commands import (
    ForkRun,
    Started,
    answer_run,
    cancel_run,
    fork_run,
    interrupt_run,
    pause_run,
    resume_run,
    retry_run,
    steer_run,
)
from harness_common.contracts.flow import Interrupt
from harness_common.core.errors import Invalid
from harness_common.core.ids import encode
from harness_common.store.run_reads import view_run

router = new_router("/v1/runs/{run_id}", "run control")

CanWrite = Annotated[Caller, requires("runs:write")]


async def _shown(services: Services, caller: Caller, run_id: UUID) -> RunView:
    return run_view(await view_run(services.db, caller.tenant_id, run_id))


async def _begun(
    services: Services, caller: Caller, response: Response, started: Started
) -> RunView:
    await announce(services, started)
    response.headers["Location"] = f"/v1/runs/{encode('run', started.run_id)}"
    return await _shown(services, caller, started.run_id)


@router.post("/cancel", status_code=202, operation_id="cancelRun", response_model=RunView)
async def post_cancel(
    run_id: RunId, services: Use, caller: CanWrite, body: RunCancel | None = None
) -> RunView:
    """Ask a run to stop: at once when nobody works on it, else at its owner's next safe point. Its
    children are stopped too. Safe to repeat.
    """
    asked = await cancel_run(
        services.db,
        caller.tenant_id,
        run_id,
        by=caller.name,
        reason=body.reason if body else "",
        actor=caller.actor,
    )
    await announce_cancel(services, run_id, asked)
    return await _shown(services, caller, run_id)


@router.post("/pause", status_code=202, operation_id="pauseRun", response_model=RunView)
async def post_pause(
    run_id: RunId, services: Use, caller: CanWrite, body: RunPause | None = None
) -> RunView:
    """Ask a run to rest: at once when nobody works on it, else after the step under way; one that
    waits rests when that has come. Safe to repeat. 409 when the run is over.
    """
    asked = await pause_run(
        services.db,
        caller.tenant_id,
        run_id,
        by=caller.name,
        reason=body.reason if body else "",
        actor=caller.actor,
    )
    await announce_change(services, run_id, asked)
    return await _shown(services, caller, run_id)


@router.post("/interrupt", status_code=202, operation_id="interruptRun", response_model=RunView)
async def post_interrupt(
    body: Interrupt, run_id: RunId, services: Use, caller: CanWrite
) -> RunView:
    """Cancel, pause or steer a run, but only while the step that is meant is due: one that is over
    answers 409 `OTHER_STEP`, and nothing is interrupted that was not looked at.
    """
    if body.run_id != encode("run", run_id):
        raise Invalid(
            "target_step_id names another run", field="target_step_id", value=body.target_step_id
        )
    if body.interrupt_type == "steer" and not body.text.strip():
        raise Invalid("steer needs a text", field="text", value=body.text)
    asked = await interrupt_run(
        services.db, caller.tenant_id, run_id, body, by=caller.name, actor=caller.actor
    )
    if body.interrupt_type == "cancel":
        await announce_cancel(services, run_id, asked)
    else:
        await announce_change(services, run_id, asked)
    return await _shown(services, caller, run_id)


@router.post("/resume", status_code=202, operation_id="resumeRun", response_model=RunView)
async def post_resume(run_id: RunId, services: Use, caller: CanWrite) -> RunView:
    """Let a paused run go on, or take a pause back before it began. Safe to repeat. 409 when the
    run is over.
    """
    asked = await resume_run(
        services.db, caller.tenant_id, run_id, by=caller.name, actor=caller.actor
    )
    await announce_change(services, run_id, asked)
    return await _shown(services, caller, run_id)


@router.post("/input", status_code=202, operation_id="answerRun", response_model=RunView)
async def post_input(body: RunInput, run_id: RunId, services: Use, caller: CanWrite) -> RunView:
    """Answer a question of a run: `waiting.calls` lists the open ones. 409 when it asks nothing,
    422 (with the open calls or the choices) when it is unclear which, or the text is no choice.
    """
    asked = await answer_run(
        services.db,
        caller.tenant_id,
        run_id,
        text=body.text,
        call=body.call,
        by=caller.name,
        actor=caller.actor,
    )
    await announce_change(services, run_id, asked)
    return await _shown(services, caller, run_id)


@router.post("/messages", status_code=202, operation_id="steerRun", response_model=RunView)
async def post_message(body: RunMessage, run_id: RunId, services: Use, caller: CanWrite) -> RunView:
    """Give a run under way a message that its next model step sees. 409 when the run is over or
    about to stop.
    """
    asked = await steer_run(
        services.db,
        caller.tenant_id,
        run_id,
        text=body.text,
        by=caller.name,
        actor=caller.actor,
    )
    await announce_change(services, run_id, asked)
    return await _shown(services, caller, run_id)


@router.post("/fork", status_code=202, operation_id="forkRun", response_model=RunView)
async def post_fork(
    run_id: RunId,
    request: Request,
    response: Response,
    services: Use,
    caller: CanWrite,
    body: RunFork | None = None,
) -> RunView:
    """Start a new run from a checkpoint of this one, with what is given changed. Effects recorded
    up to there are copied and not repeated. A dry run answers model and tools from the record.
    """
    given = body or RunFork()
    wanted = ForkRun(
        step=given.step,
        input=given.input,
        agent_version=given.agent_version,
        model=given.model,
        tools=given.tools,
        dry_run=given.dry_run,
        created_by=caller.name,
        trace_id=trace_id_of(request),
    )
    started = await fork_run(services.db, caller.tenant_id, run_id, wanted, actor=caller.actor)
    return await _begun(services, caller, response, started)


@router.post("/retry", status_code=202, operation_id="retryRun", response_model=RunView)
async def post_retry(
    run_id: RunId,
    request: Request,
    response: Response,
    services: Use,
    caller: CanWrite,
    body: RunRetry | None = None,
) -> RunView:
    """Start a new run from the last checkpoint of one that failed or was cancelled, or that does
    `from_step` and what follows anew; recorded effects before it are not repeated.
    """
    started = await retry_run(
        services.db,
        caller.tenant_id,
        run_id,
        from_step=body.from_step if body else None,
        if_not_retried=body is not None and body.if_not_retried,
        created_by=caller.name,
        trace_id=trace_id_of(request),
        actor=caller.actor,
    )
    return await _begun(services, caller, response, started)
