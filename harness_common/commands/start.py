"""Starting a run: queued, or admitted at once when there is room and nobody waits before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar
from uuid import UUID

from harness_common.broker.publish import Doorbell
from harness_common.commands.control import Asked, cancel_run, steer_in
from harness_common.contracts.agent import AgentSpec
from harness_common.core import events as ev
from harness_common.core.budget import Limits
from harness_common.core.errors import Conflict, NotFound
from harness_common.core.events import Event
from harness_common.core.ids import encode
from harness_common.core.inputs import Admit
from harness_common.core.message import Json, Message, dumps, user
from harness_common.core.rules import advance
from harness_common.core.run import TERMINAL, RunState, Status, Transition, holds_slot, wake_at
from harness_common.store import json_codec
from harness_common.store.apply import RING_AFTER_S, encode_snapshot
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.db import Connection, Database, Row, run_sql, run_together
from harness_common.store.rows import StoredRun

N = TypeVar("N", int, float)


OnBusy = Literal["reject", "enqueue", "interrupt", "steer"]


@dataclass(frozen=True, slots=True)
class Parent:
    """The call that a child run is the work of; one call has one child."""

    run_id: UUID
    step: int
    index: int
    depth: int
    """Runs above the child."""


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
    concurrency_key: str | None = None
    """At most `concurrency_max` runs of a key run at once; the others wait in the order they came.
    """
    concurrency_max: int = 1
    on_busy: OnBusy = "reject"
    """What to do when the session's last run is still going."""
    parent: Parent | None = None
    created_by: str = ""
    trace_id: str = ""
    idempotency_key: str | None = None
    body_digest: str = ""
    idempotency_ttl_s: int = 24 * 3600


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A run that was asked to stop."""

    run_id: UUID
    asked: Asked


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
    steered: bool = False
    """No new run: the input went to the session's run under way."""
    interrupted: Interrupted | None = None
    """The session's run that was asked to stop, so that this one can begin."""


async def start_run(
    db: Database, tenant_id: UUID, request: StartRun, *, actor: Actor | None = None
) -> Started:
    """Accept a run: queued, or running at once when the tenant has room and nobody waits before it.

    With an `actor` the audit trail gets a row in the same transaction. Raises `NotFound` (agent,
    session), `Conflict` (closed or busy session, key used for another body).
    """
    if request.session_id is not None and request.on_busy in {"steer", "interrupt"}:
        return await _start_in_busy_session(db, tenant_id, request, actor)
    async with db.tenant_transaction(tenant_id) as conn:
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
    spec = AgentSpec.model_validate(begun["spec"])
    state = RunState(limits=_limits(spec, request, begun["now"]), messages=1)
    held_for = "session" if _head_is_going(begun, request) else None
    first = First(state, (user(request.input),), held_for=held_for)
    started = await insert(db, conn, tenant_id, begun, spec, request, first)
    if actor is not None:
        detail = {"agent": f"{begun['agent_name']}@{begun['agent_version']}"}
        entry = Entry("run.create", encode("run", started.run_id), detail)
        await record(conn, tenant_id, actor, entry, db.timeout_s)
    return started


async def _start_in_busy_session(
    db: Database, tenant_id: UUID, request: StartRun, actor: Actor | None
) -> Started:
    """Steer or interrupt the session's run under way, or start a run when there is none.

    The run is locked before the tenant's slots, as its owner's commit does.
    """
    assert request.session_id is not None
    if request.on_busy == "steer":
        try:
            async with db.tenant_transaction(tenant_id) as conn:
                steered = await _steer_head(db, conn, tenant_id, request, actor)
        except Conflict as error:
            if error.error_code not in {"RUN_OVER", "RUN_STOPPING"}:
                raise
            steered = None  # it ended meanwhile: the message begins the next run
        if steered is not None:
            return steered
        async with db.tenant_transaction(tenant_id) as conn:
            queued = replace(request, on_busy="enqueue")
            return await start_in(db, conn, tenant_id, queued, actor=actor)
    head = await db.fetch_one(
        "session_head", {"tenant_id": tenant_id, "session_id": request.session_id}
    )
    interrupted = None
    if head is not None and Status(head["status"]) not in TERMINAL:
        asked = await cancel_run(
            db, tenant_id, head["run_id"],
            by=request.created_by, reason="interrupted by a new message", actor=actor,
        )  # fmt: skip
        interrupted = Interrupted(head["run_id"], asked)
    async with db.tenant_transaction(tenant_id) as conn:
        queued = replace(request, on_busy="enqueue")
        started = await start_in(db, conn, tenant_id, queued, actor=actor)
    return replace(started, interrupted=interrupted)


async def _steer_head(
    db: Database, conn: Connection, tenant_id: UUID, request: StartRun, actor: Actor | None
) -> Started | None:
    """Give the input to the session's run under way; None when there is none."""
    rows = await run_sql(
        conn,
        "session_head",
        {"tenant_id": tenant_id, "session_id": request.session_id},
        db.timeout_s,
    )
    if not rows or Status(rows[0]["status"]) in TERMINAL:
        return None
    run_id: UUID = rows[0]["run_id"]
    if request.idempotency_key is not None:
        twin = await _reserve_key(db, conn, tenant_id, request, run_id)
        if twin is not None:
            return twin
    asked = await steer_in(
        db, conn, tenant_id, run_id, text=request.input, by=request.created_by, actor=actor
    )
    return Started(run_id, request.session_id, asked.status, steered=True)


def _head_is_going(begun: Row, request: StartRun) -> bool:
    return (
        request.session_id is not None
        and begun["head_status"] is not None
        and Status(begun["head_status"]) not in TERMINAL
    )


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


def check_start(begun: Row, request: StartRun) -> None:
    """Raise `NotFound` or `Conflict` when a run cannot be started as asked."""
    if begun["agent_id"] is None:
        version = f" version {request.agent_version}" if request.agent_version else ""
        raise NotFound(
            f"no agent {request.agent!r}{version}; create it with `harness agents apply FILE`",
            code="AGENT_NOT_FOUND",
            field="agent",
            value=request.agent,
        )
    if request.session_id is None:
        return
    if begun["session_id"] is None:
        session = encode("session", request.session_id)
        raise NotFound(f"no session {session}", field="session_id", value=session)
    if begun["closed_at"] is not None:
        raise Conflict("the session is closed; start a new one", session="closed")
    if request.on_busy == "reject" and _head_is_going(begun, request):
        raise Conflict(
            "the session has a run that is still going; wait for it, cancel it, or say with "
            "on_busy what to do: enqueue, interrupt or steer",
            code="SESSION_BUSY",
            run_id=encode("run", begun["head_run_id"]),
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


@dataclass(frozen=True, slots=True)
class First:
    """How a run begins: fresh with its first message, or as a copy of a checkpoint."""

    state: RunState
    messages: tuple[Message, ...] = ()
    source: StoredRun | None = None
    copied: tuple[int, int] = (1, 0)
    """First and last message to copy from the source; `messages` come after those."""
    overrides: Mapping[str, Json] = field(default_factory=dict)
    held_for: str | None = None


async def insert(
    db: Database,
    conn: Connection,
    tenant_id: UUID,
    begun: Row,
    spec: AgentSpec,
    request: StartRun,
    first: First,
) -> Started:
    """Write the run in its first state, admitted at once if there is room and nobody waits."""
    run_id, now, state, source = begun["run_id"], begun["now"], first.state, first.source
    session_id = begun["session_id"] or begun["new_session_id"]
    about: dict[str, Json] = {"agent": f"{begun['agent_name']}@{begun['agent_version']}"}
    if source is not None:
        about["forked_from"] = {"run": encode("run", source.id), "step": state.step}
    if first.overrides:
        about["overrides"] = dict(first.overrides)
    if request.parent is not None:
        parent = request.parent
        about["parent"] = {
            "run": encode("run", parent.run_id), "call": f"{parent.step}.{parent.index}",
        }  # fmt: skip
    held_for = first.held_for or ("key" if request.concurrency_key is not None else None)
    made = Transition(state, (Event(ev.RUN_CREATED, about),))
    if held_for is None and begun["running"] < begun["may_run"] and not begun["others_wait"]:
        admitted = advance(state, [Admit()], now)
        made = replace(admitted, events=made.events + admitted.events)
    body: dict[str, Any] = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "session_id": session_id,
        "new_session": begun["session_id"] is None,
        "agent_id": begun["agent_id"],
        "agent_name": begun["agent_name"],
        "agent_version": begun["agent_version"],
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
        "prev_run_id": source.prev_run_id if source else begun["head_run_id"],
        "forked_from": source.id if source else None,
        "forked_step": state.step if source else None,
        "overrides": first.overrides,
        "held_for": held_for,
        "concurrency_key": request.concurrency_key,
        "concurrency_max": request.concurrency_max,
        "parent_run_id": request.parent.run_id if request.parent else None,
        "parent_step": request.parent.step if request.parent else None,
        "parent_idx": request.parent.index if request.parent else None,
        "depth": request.parent.depth if request.parent else 0,
        "turn_at": made.state.turn_at,
        "copy_from": first.copied[0],
        "copy_to": first.copied[1],
        "title": request.title,
        "user_id": request.user_id,
        "slot_delta": int(holds_slot(made.state)),
        "events": [{"type": e.type, "step": e.step, "payload": e.payload} for e in made.events],
        "messages": [
            {
                "n": first.copied[1] + 1 + i,
                "step": state.step,
                "role": m.role,
                "trust": m.trust,
                "body": dumps(m),
            }
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
