"""Starting a run: queued, or admitted at once when there is room and nobody waits before it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from harness_common.commands.control import cancel_run, steer_in
from harness_common.commands.insert import First, insert
from harness_common.commands.request import Interrupted, Started, StartRun
from harness_common.commands.start_transaction import start_transaction
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.output import check_output_schema
from harness_common.contracts.request_options import options_of
from harness_common.core.budget import Limits
from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.core.hints import assigned
from harness_common.core.ids import encode
from harness_common.core.message import Json, Trust, user
from harness_common.core.run import RunState, Status
from harness_common.core.taint import UNTRUSTED, memo_with
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row, run_sql, run_together
from harness_common.store.db import Database

N = TypeVar("N", int, float)
_ROUTE: Final = "runs.create"
"""What idempotency keys are unique within."""


async def start_run(
    db: Database, tenant_id: UUID, request: StartRun, *, actor: Actor | None = None
) -> Started:
    """Accept a run: queued, or running at once when the tenant has room and nobody waits before it.

    With an `actor` the audit trail gets a row in the same transaction. Raises `NotFound` (agent,
    session), `Conflict` (closed or busy session, key used for another body).
    """
    if request.session_id is not None and request.on_busy in {"steer", "interrupt"}:
        return await _start_in_busy_session(db, tenant_id, request, actor)
    async with start_transaction(db, tenant_id) as conn:
        return await start_in(db, conn, tenant_id, request, actor=actor)


async def start_in(
    db: Database, conn: Connection, tenant_id: UUID, request: StartRun, *, actor: Actor | None
) -> Started:
    """Do what `start_run` does within the caller's transaction (but for steering and interrupting,
    which take the session's run before its tenant).
    """
    begun = await begin(db, conn, tenant_id, request)
    if request.idempotency_key is not None:
        twin = await _reserve_key(db, conn, tenant_id, request, begun["run_id"])
        if twin is not None:
            return twin
    check_start(begun, request)
    if request.follows is not None and begun["head_run_id"] != request.follows:
        begun = begun | {"session_id": None}  # a branch: the session goes on without it
    spec = AgentSpec.model_validate(begun["spec"])
    if (options := options_of(request.overrides)) is not None:
        options.check(spec.tools)
    if spec.foreign is not None and request.output_schema is not None:
        raise Invalid(
            f"Harness does not hold an agent of kind {spec.kind} to an output_schema",
            field="output_schema",
        )
    limits = _limits(spec, request, begun["now"])
    state = RunState(
        limits=limits,
        next_kind=spec.first_kind,
        messages=len(request.earlier) + 1,
        memo=memo_with({}, request.marks),
    )
    held_for = "session" if begun["session_id"] and begun["going_run_id"] else None
    trust: Trust = "untrusted" if UNTRUSTED in request.marks else "trusted"
    asked = user(request.input, trust)
    said = (*request.earlier, asked if request.parent is None else assigned(asked))
    first = First(state, said, overrides=_overrides(request), held_for=held_for)
    started = await insert(db, conn, tenant_id, begun, spec, request, first)
    if actor is not None:
        detail = {"agent": f"{begun['agent_name']}@{begun['agent_version']}"}
        entry = Entry("run.create", encode("run", started.run_id), detail)
        record(conn, tenant_id, actor, entry)
    return started


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
        async with start_transaction(db, tenant_id) as conn:
            queued = replace(request, on_busy="enqueue")
            return await start_in(db, conn, tenant_id, queued, actor=actor)
    queued = replace(request, on_busy="enqueue")
    interrupted = []
    for run_id in await _runs_to_stop(db, tenant_id, queued):
        asked = await cancel_run(
            db, tenant_id, run_id,
            by=request.created_by, reason="interrupted by a new message", actor=actor,
        )  # fmt: skip
        interrupted.append(Interrupted(run_id, asked))
    async with start_transaction(db, tenant_id) as conn:
        started = await start_in(db, conn, tenant_id, queued, actor=actor)
    return replace(started, interrupted=tuple(interrupted))


async def _runs_to_stop(db: Database, tenant_id: UUID, request: StartRun) -> list[UUID]:
    """Return the session's runs that are not over, the newest first, if `request` may begin a new
    one; none when this request, sent before, has begun it. Raises what `start_in` would.
    """
    async with start_transaction(db, tenant_id) as conn:
        begun = await begin(db, conn, tenant_id, request)
        if request.idempotency_key is not None:
            made = await run_sql(
                conn, "idempotency_read", _key_of(tenant_id, request), db.timeout_s
            )
            if made and not made[0]["past"]:
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
        twin = await _reserve_key(db, conn, tenant_id, request, run_id)
        if twin is not None:
            return twin
    asked = await steer_in(
        db, conn, tenant_id, run_id, text=request.input, by=request.created_by, actor=actor
    )
    return Started(run_id, request.session_id, asked.status, steered=True)


def _overrides(request: StartRun) -> dict[str, Json]:
    """Return what the run has in place of its agent's definition."""
    if request.output_schema is None:
        return dict(request.overrides)
    check_output_schema(request.output_schema)
    return {**request.overrides, "output_schema": request.output_schema}


async def _going(db: Database, conn: Connection, tenant_id: UUID, request: StartRun) -> list[Row]:
    """Return the runs of the session that are not over, the newest first."""
    session = {"tenant_id": tenant_id, "session_id": request.session_id}
    return await run_sql(conn, "session_going", session, db.timeout_s)


async def begin(db: Database, conn: Connection, tenant_id: UUID, request: StartRun) -> Row:
    """Hold the tenant's slots, then read what a start depends on: its starts go one by one."""
    find = {
        "tenant_id": tenant_id,
        "agent": request.agent,
        "agent_version": request.agent_version,
        "session_id": request.session_id,
    }
    _, rows = await run_together(
        conn,
        [("slots_hold", {"tenant_id": tenant_id}), ("start_begin", find)],
        db.timeout_s,
    )
    if not rows:
        raise NotFound("no such tenant")
    return rows[0]


def _key_of(tenant_id: UUID, request: StartRun) -> dict[str, Any]:
    return {
        "tenant_id": tenant_id,
        "route": _ROUTE,
        "key": request.idempotency_key,
        "ttl_s": float(request.idempotency_ttl_s),
    }


async def _reserve_key(
    db: Database, conn: Connection, tenant_id: UUID, request: StartRun, run_id: UUID
) -> Started | None:
    """Take the idempotency key for this run; or return the run that it made before."""
    scope = _key_of(tenant_id, request)
    params = scope | {"digest": request.body_digest, "run_id": run_id}
    if (await run_sql(conn, "idempotency", params, db.timeout_s))[0]["reserved"]:
        return None
    rows = await run_sql(conn, "idempotency_read", scope, db.timeout_s)
    if rows[0]["body_digest"] != request.body_digest:
        raise Conflict(
            f"Idempotency-Key {request.idempotency_key!r} was used for another body; use a new key",
            code="IDEMPOTENCY_KEY_REUSED",
            field="Idempotency-Key",
        )
    return Started(
        rows[0]["run_id"], rows[0]["session_id"], Status(rows[0]["status"]), replayed=True
    )


_SAY: Final = "say with on_busy what to do: enqueue, interrupt or steer"


def check_start(begun: Row, request: StartRun, *, instead: str = _SAY) -> None:
    """Raise `NotFound` or `Conflict` when a run cannot be started as asked; `instead` says what may
    be done while its session is busy.
    """
    if begun["agent_id"] is None:
        version = f" version {request.agent_version}" if request.agent_version else ""
        raise NotFound(
            f"no agent {request.agent!r}{version}; create it with `harness agents apply FILE`",
            code="AGENT_NOT_FOUND",
            field="agent_version" if request.agent_version else "agent",
            value=request.agent_version or request.agent,
        )
    if request.session_id is None:
        return
    if begun["session_id"] is None:
        session = encode("session", request.session_id)
        raise NotFound(f"no session {session}", field="session_id", value=session)
    if begun["closed_at"] is not None:
        raise Conflict("the session is closed; start a new one", session="closed")
    if request.on_busy == "reject" and begun["going_run_id"] is not None:
        raise Conflict(
            f"the session has a run that is still going; wait for it, cancel it, or {instead}",
            code="SESSION_BUSY",
            run_id=encode("run", begun["going_run_id"]),
        )


def _limits(spec: AgentSpec, request: StartRun, now: datetime) -> Limits:
    """Pin what the run may use: the request may only narrow what its agent allows."""
    timeout_s = least(spec.timeout_s, request.timeout_s)
    return Limits(
        max_turns=min(spec.turns, request.max_turns or spec.turns),
        max_tokens=least(spec.max_tokens_total, request.max_tokens),
        max_cost_usd=least(spec.max_cost_usd, request.max_cost_usd),
        deadline=now + timedelta(seconds=timeout_s) if timeout_s else None,
    )


def least(a: N | None, b: N | None) -> N | None:
    """Return the smaller of two limits; None is no limit."""
    return min((x for x in (a, b) if x is not None), default=None)
