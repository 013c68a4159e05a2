"""What people ask for: start, cancel, retry. Each builds an input, applies it and returns what must
happen next.

Called by the API (and by the scheduler for schedules). Every command is one transaction; doorbells
and signals go out after it, and a lost one costs seconds, never a run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from harness_common.broker.publish import Doorbell
from harness_common.contracts.agent import AgentSpec
from harness_common.core import events as ev
from harness_common.core.budget import Limits
from harness_common.core.errors import Conflict, NotFound
from harness_common.core.events import Event
from harness_common.core.ids import encode
from harness_common.core.inputs import Admit, CancelRequested
from harness_common.core.message import Json, Message, dumps, user
from harness_common.core.rules import advance
from harness_common.core.run import TERMINAL, RunState, Status, Transition, holds_slot, wake_at
from harness_common.store import json_codec
from harness_common.store.apply import (
    RING_AFTER_S,
    Write,
    apply,
    encode_snapshot,
    lock_run,
)
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.db import Connection, Database, Row, run_sql, run_together
from harness_common.store.reads import checkpoint_state
from harness_common.store.rows import StoredRun

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class StartRun:
    """A request for a new run. `idempotency_key` with the digest of the request body makes it safe
    to repeat.
    """

    agent: str
    input: str
    agent_version: int | None = None
    session_id: UUID | None = None
    title: str | None = None
    user_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    priority: int = 6
    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    timeout_s: float | None = None
    created_by: str = ""
    trace_id: str = ""
    idempotency_key: str | None = None
    body_digest: str = ""
    idempotency_ttl_s: int = 24 * 3600


@dataclass(frozen=True, slots=True)
class Started:
    """The accepted run; `replayed` when the idempotency key had made it before. `doorbell` when it
    was admitted at once.
    """

    run_id: UUID
    session_id: UUID | None
    status: Status
    replayed: bool = False
    doorbell: Doorbell | None = None


@asynccontextmanager
async def _within(
    db: Database, tenant_id: UUID, conn: Connection | None
) -> AsyncIterator[Connection]:
    """Take part in the transaction that is open on `conn`; without one, open one."""
    if conn is not None:
        yield conn
        return
    async with db.tenant_transaction(tenant_id) as opened:
        yield opened


async def start_run(
    db: Database,
    tenant_id: UUID,
    request: StartRun,
    *,
    actor: Actor | None = None,
    within: Connection | None = None,
) -> Started:
    """Accept a run: queued, or running at once when the tenant has room and nobody waits before it.

    With an `actor` the audit trail gets a row in the same transaction. Raises `NotFound` (agent,
    session), `Conflict` (closed or busy session, key used for another body); neither has written
    anything. `within` makes it part of an open transaction.
    """
    async with _within(db, tenant_id, within) as conn:
        begin = await _begin(db, conn, tenant_id, request)
        if request.idempotency_key is not None:
            twin = await _reserve_key(db, conn, tenant_id, request, begin["run_id"])
            if twin is not None:
                return twin
        _check_start(begin, request)
        spec = AgentSpec.model_validate(begin["spec"])
        first = user(request.input)
        state = RunState(limits=_limits(spec, request, begin["now"]), messages=1)
        started = await _insert(db, conn, tenant_id, begin, spec, request, _First(state, (first,)))
        if actor is not None:
            detail = {"agent": f"{begin['agent_name']}@{begin['agent_version']}"}
            entry = Entry("run.create", encode("run", started.run_id), detail)
            await record(conn, tenant_id, actor, entry, db.timeout_s)
        return started


async def retry_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    created_by: str,
    trace_id: str = "",
    actor: Actor | None = None,
) -> Started:
    """Make a new run that goes on from the last checkpoint of a finished one; recorded effects are
    not run again.

    Raises `NotFound`, and `Conflict` while the run is still going or when it succeeded.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        held = await lock_run(conn, tenant_id, run_id, db.timeout_s)
        if held is None:
            raise NotFound(f"no run {encode('run', run_id)}", run_id=encode("run", run_id))
        source, _ = held
        if source.state.status not in {Status.FAILED, Status.CANCELLED}:
            raise Conflict(
                f"only a failed or cancelled run can be retried; this one is {source.state.status}",
                status=str(source.state.status),
            )
        request = StartRun(
            agent=source.agent_name,
            agent_version=source.agent_version,
            input="",  # the source's, copied by start_insert.sql
            session_id=source.session_id,
            priority=source.priority,
            created_by=created_by,
            trace_id=trace_id,
        )
        begin = await _begin(db, conn, tenant_id, request)
        _check_start(begin, request)
        spec = AgentSpec.model_validate(begin["spec"])
        state = await checkpoint_state(conn, source, source.state.step, db.timeout_s)
        state = replace(state, limits=_fresh_limits(spec, source, state, begin["now"]))
        started = await _insert(
            db, conn, tenant_id, begin, spec, request, _First(state, source=source)
        )
        if actor is not None:
            detail = {"made": encode("run", started.run_id)}
            entry = Entry("run.retry", encode("run", run_id), detail)
            await record(conn, tenant_id, actor, entry, db.timeout_s)
        return started


async def _begin(db: Database, conn: Connection, tenant_id: UUID, request: StartRun) -> Row:
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


async def _reserve_key(
    db: Database, conn: Connection, tenant_id: UUID, request: StartRun, run_id: UUID
) -> Started | None:
    """Take the idempotency key for this run; or return the run that it made before."""
    scope = {"tenant_id": tenant_id, "route": "runs.create", "key": request.idempotency_key}
    params = scope | {
        "digest": request.body_digest,
        "run_id": run_id,
        "ttl_s": float(request.idempotency_ttl_s),
    }
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


def _check_start(begin: Row, request: StartRun) -> None:
    if begin["agent_id"] is None:
        version = f" version {request.agent_version}" if request.agent_version else ""
        raise NotFound(
            f"no agent {request.agent!r}{version}; create it with `harness agents apply FILE`",
            code="AGENT_NOT_FOUND",
            field="agent",
            value=request.agent,
        )
    if request.session_id is None:
        return
    if begin["session_id"] is None:
        session = encode("session", request.session_id)
        raise NotFound(f"no session {session}", field="session_id", value=session)
    if begin["closed_at"] is not None:
        raise Conflict("the session is closed; start a new one", session="closed")
    if begin["head_status"] is not None and Status(begin["head_status"]) not in TERMINAL:
        raise Conflict(
            "the session has a run that is still going; wait for it or cancel it",
            code="SESSION_BUSY",
            run_id=encode("run", begin["head_run_id"]),
        )


def _limits(spec: AgentSpec, request: StartRun, now: datetime) -> Limits:
    """Pin what the run may use: the request may only narrow what its agent allows."""
    timeout_s = _least(spec.timeout_s, request.timeout_s)
    return Limits(
        max_turns=min(spec.turns, request.max_turns or spec.turns),
        max_tokens=_least(spec.max_tokens_total, request.max_tokens),
        max_cost_usd=_least(spec.max_cost_usd, request.max_cost_usd),
        deadline=now + timedelta(seconds=timeout_s) if timeout_s else None,
    )


def _fresh_limits(spec: AgentSpec, source: StoredRun, state: RunState, now: datetime) -> Limits:
    """Give a retry the allowance of a new run on top of what its checkpoint has used already."""
    was = source.state.limits
    tokens = _least(spec.max_tokens_total, was.max_tokens)
    cost_usd = _least(spec.max_cost_usd, was.max_cost_usd)
    return Limits(
        max_turns=state.turn + min(spec.turns, was.max_turns),
        max_tokens=None if tokens is None else state.input_tokens + state.output_tokens + tokens,
        max_cost_usd=None if cost_usd is None else state.cost_usd + cost_usd,
        deadline=now + timedelta(seconds=spec.timeout_s) if spec.timeout_s else None,
    )


def _least(a: N | None, b: N | None) -> N | None:
    return min((x for x in (a, b) if x is not None), default=None)


@dataclass(frozen=True, slots=True)
class _First:
    """How a run begins: fresh with its first message, or as a copy of a checkpoint."""

    state: RunState
    messages: tuple[Message, ...] = ()
    source: StoredRun | None = None


async def _insert(
    db: Database,
    conn: Connection,
    tenant_id: UUID,
    begin: Row,
    spec: AgentSpec,
    request: StartRun,
    first: _First,
) -> Started:
    """Write the run in its first state, admitted at once if there is room and nobody waits."""
    run_id, now, state, source = begin["run_id"], begin["now"], first.state, first.source
    session_id = begin["session_id"] or begin["new_session_id"]
    about: dict[str, Json] = {"agent": f"{begin['agent_name']}@{begin['agent_version']}"}
    if source is not None:
        about["forked_from"] = {"run": encode("run", source.id), "step": source.state.step}
    made = Transition(state, (Event(ev.RUN_CREATED, about),))
    if begin["running"] < begin["may_run"] and not begin["others_wait"]:
        admitted = advance(state, [Admit()], now)
        made = replace(admitted, events=made.events + admitted.events)
    body: dict[str, Any] = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "session_id": session_id,
        "new_session": begin["session_id"] is None,
        "agent_id": begin["agent_id"],
        "agent_name": begin["agent_name"],
        "agent_version": begin["agent_version"],
        "status": made.state.status,
        "version": made.state.version,
        "step": made.state.step,
        "next_kind": made.state.next_kind,
        "turn": made.state.turn,
        "message_count": made.state.messages,
        "memo": made.state.memo,
        "started": made.state.started,
        "input_tokens": made.state.input_tokens,
        "output_tokens": made.state.output_tokens,
        "cost_usd": made.state.cost_usd,
        "limits": made.state.limits.to_json(),
        "retry": spec.retry.model_dump(),
        "queue": spec.queue,
        "priority": request.priority,
        "wake_at": wake_at(made.state, now, RING_AFTER_S),
        "rings": 1 if made.ready else 0,
        "input": request.input,
        "tags": request.tags,
        "created_by": request.created_by,
        "trace_id": request.trace_id or run_id.hex,
        "prev_run_id": source.prev_run_id if source else begin["head_run_id"],
        "forked_from": source.id if source else None,
        "forked_step": source.state.step if source else None,
        "title": request.title,
        "user_id": request.user_id,
        "slot_delta": int(holds_slot(made.state)),
        "events": [{"type": e.type, "step": e.step, "payload": e.payload} for e in made.events],
        "messages": [
            {"n": i + 1, "step": 0, "role": m.role, "trust": m.trust, "body": dumps(m)}
            for i, m in enumerate(first.messages)
        ],
    }
    snapshot = encode_snapshot(made.state) if source is not None else None
    params = {"t": json_codec.dumps_text(body), "snapshot": snapshot}
    await run_sql(conn, "start_insert", params, db.timeout_s)
    bell = (
        Doorbell(
            tenant_id, run_id, made.state.version, spec.queue, request.priority,
            trace_id=body["trace_id"],
        )
        if made.ready
        else None
    )  # fmt: skip
    return Started(run_id, session_id, made.state.status, doorbell=bell)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel did. `signal_worker` names the process that must be told to stop."""

    status: Status
    claimed_by: UUID | None = None
    changed: bool = True


async def cancel_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    by: str,
    reason: str = "",
    actor: Actor | None = None,
    within: Connection | None = None,
) -> Cancelled:
    """Ask a run to stop: at once when nobody owns it, else at its owner's next safe point. Safe to
    repeat.

    Raises `NotFound`. A run that has already ended is left as it is.
    """
    async with _within(db, tenant_id, within) as conn:
        held = await lock_run(conn, tenant_id, run_id, db.timeout_s)
        if held is None:
            raise NotFound(f"no run {encode('run', run_id)}", run_id=encode("run", run_id))
        run, now = held
        if run.state.status in TERMINAL:
            return Cancelled(run.state.status, changed=False)
        if run.state.cancel_requested:
            return Cancelled(run.state.status, run.claimed_by, changed=False)
        transition = advance(run.state, [CancelRequested(by, reason)], now)
        await run_sql(
            conn,
            "input_insert",
            {
                "tenant_id": tenant_id,
                "run_id": run_id,
                "n": run.last_input_n + 1,
                "kind": "cancel",
                "body": json_codec.dumps_text({"reason": reason}),
                "created_by": by,
            },
            db.timeout_s,
        )
        (applied,) = await apply(
            conn, [Write(run, transition, now, input_delta=1)], timeout_s=db.timeout_s
        )
        if applied is None:
            raise Conflict("the run changed while it was locked", run_id=encode("run", run_id))
        if actor is not None:
            entry = Entry("run.cancel", encode("run", run_id), {"reason": reason})
            await record(conn, tenant_id, actor, entry, db.timeout_s)
        return Cancelled(applied.run.state.status, applied.run.claimed_by)
