"""Starting a run: queued, or admitted at once when there is room and nobody waits before it."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from harness_common.commands.accept import Start
from harness_common.commands.begin import begin, check_start, reserve_keys
from harness_common.commands.control import cancel_run, steer_in
from harness_common.commands.request import Interrupted, Started, StartRun
from harness_common.commands.slots_transaction import slots_transaction
from harness_common.commands.together import start_together
from harness_common.core.errors import Conflict
from harness_common.store.audit import Actor
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.db import Database


async def start_run(
    db: Database, tenant_id: UUID, request: StartRun, *, actor: Actor | None = None
) -> Started:
    """Accept a run: queued, or running at once when the tenant has room and nobody waits before it.

    With an `actor` the audit trail gets a row in the same transaction. Raises `NotFound` (agent,
    session), `Conflict` (closed or busy session, key used for another body).
    """
    if request.session_id is not None and request.on_busy in {"steer", "interrupt"}:
        return await _start_in_busy_session(db, tenant_id, request, actor)
    return await start_together(db, tenant_id, Start(request, actor))


async def _start_in_busy_session(
    db: Database, tenant_id: UUID, request: StartRun, actor: Actor | None
) -> Started:
    """Steer the session's run under way, or stop all that is going in it, or start a run when there
    is none.

    Runs are locked before the tenant's slots, as their owners' commits do.
    """
    if request.on_busy == "steer":
        try:
            async with db.tenant_transaction(tenant_id) as conn:
                steered = await _steer_going(db, conn, tenant_id, request, actor)
        except Conflict as error:
            if error.error_code not in {"RUN_OVER", "RUN_STOPPING"}:
                raise
            steered = None  # it ended meanwhile: the message begins the next run
        if steered is not None:
            return steered
        queued = replace(request, on_busy="enqueue")
        return await start_together(db, tenant_id, Start(queued, actor))
    queued = replace(request, on_busy="enqueue")
    interrupted = []
    for run_id in await _runs_to_stop(db, tenant_id, queued):
        asked = await cancel_run(
            db, tenant_id, run_id,
            by=request.created_by, reason="interrupted by a new message", actor=actor,
        )  # fmt: skip
        interrupted.append(Interrupted(run_id, asked))
    started = await start_together(db, tenant_id, Start(queued, actor))
    return replace(started, interrupted=tuple(interrupted))


async def _runs_to_stop(db: Database, tenant_id: UUID, request: StartRun) -> list[UUID]:
    """Return the session's runs that are not over, the newest first, if `request` may begin a new
    one; none when this request, sent before, has begun it. Raises what `start_in` would.
    """
    async with slots_transaction(db, tenant_id) as conn:
        (begun,) = await begin(db, conn, tenant_id, [request])
        if begun["twin"] is not None:
            return []
        check_start(begun, request)
        return [row["run_id"] for row in await _going(db, conn, tenant_id, request)]


async def _steer_going(
    db: Database, conn: Connection, tenant_id: UUID, request: StartRun, actor: Actor | None
) -> Started | None:
    """Give the input to the session's run under way, the first that is not about to stop; None when
    there is none.
    """
    going = await _going(db, conn, tenant_id, request)
    going = [row for row in going if not row["cancel_requested"]]
    if not going:
        return None
    run_id: UUID = going[-1]["run_id"]
    if request.idempotency_key is not None:
        (twin,) = await reserve_keys(db, conn, tenant_id, [(request, run_id)])
        if isinstance(twin, Conflict):
            raise twin
        if twin is not None:
            return twin
    asked = await steer_in(
        db, conn, tenant_id, run_id, text=request.input, by=request.created_by, actor=actor
    )
    return Started(run_id, request.session_id, asked.status, steered=True)


async def _going(db: Database, conn: Connection, tenant_id: UUID, request: StartRun) -> list[Row]:
    """Return the runs of the session that are not over, the newest first."""
    session = {"tenant_id": tenant_id, "session_id": request.session_id}
    return await run_sql(conn, "session_going", session, db.timeout_s)
