"""New runs from a checkpoint of another: retry, fork and dry run.

What the ledger recorded up to the checkpoint is copied with it, so that no effect runs again.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from harness_common.commands.accept import least
from harness_common.commands.begin import begin, check_start
from harness_common.commands.insert import First, NewRun, insert
from harness_common.commands.request import Started, StartRun
from harness_common.commands.slots_transaction import slots_transaction
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.foreign import KINDS as FOREIGN_KINDS
from harness_common.contracts.request_options import options_of
from harness_common.core.budget import Limits
from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.core.ids import encode
from harness_common.core.message import Json, Message, user
from harness_common.core.run import OF_ONE_STEP, TERMINAL, RunState, Status
from harness_common.core.step import MODEL, NODE
from harness_common.core.taint import marks_in, memo_with
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row, run_sql, run_together
from harness_common.store.db import Database
from harness_common.store.reads import checkpoint_state
from harness_common.store.rows import StoredRun, run_from_row
from harness_common.store.wipe import Kind
from harness_common.telemetry.causes import note_made


@dataclass(frozen=True, slots=True)
class ForkRun:
    """A request for a run from a checkpoint, with what is to be different."""

    step: int | None = None
    """Committed steps to keep; None keeps all, and none for a dry run."""
    input: str | None = None
    """At step 0 it replaces the input; later it is said to the next model step."""
    agent_version: int | None = None
    model: str | None = None
    tools: tuple[str, ...] | None = None
    dry_run: bool = False
    """Answer model and tools from what the source recorded; nothing outside is called."""
    child: StartRun | None = None
    """Make a child of it, as this asks for one."""
    created_by: str = ""
    trace_id: str = ""

    def overrides(self, source: StoredRun) -> dict[str, Json]:
        """Return what the new run changes of its agent, over what its source changed."""
        out = dict(source.overrides)
        if self.model is not None:
            out["model"] = self.model
        if self.tools is not None:
            out["tools"] = list(self.tools)
        if self.dry_run:
            out["recorded"] = source.id.hex
        return out


async def retry_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    from_step: int | None = None,
    if_not_retried: bool = False,
    created_by: str,
    trace_id: str = "",
    actor: Actor | None = None,
) -> Started:
    """Make a new run that goes on from the last checkpoint of one that failed or was cancelled, or
    that does step `from_step` and what follows anew.

    Raises `NotFound`, and `Conflict` while the run is still going or when it succeeded; with
    `if_not_retried` also when a retry of it was made before, by whoever.
    """
    async with slots_transaction(db, tenant_id) as conn:
        if if_not_retried:
            await _require_not_retried(db, conn, tenant_id, run_id)
        source, held = await _source(db, conn, tenant_id, run_id)
        if source.state.status not in {Status.FAILED, Status.CANCELLED}:
            raise Conflict(
                f"only a failed or cancelled run can be retried; this one is {source.state.status}",
                code="NOT_RETRYABLE",
                status=str(source.state.status),
            )
        last = source.state.step + 1
        if from_step is not None and not 1 <= from_step <= last:
            raise Invalid(
                f"from_step is one of 1 to {last}: the run has committed {source.state.step} steps",
                field="from_step",
                value=from_step,
                limit=last,
            )
        step = None if from_step is None else from_step - 1
        request = ForkRun(step=step, created_by=created_by, trace_id=trace_id)
        return await _fork(db, conn, source, held, request, "run.retry", actor)


async def fork_run(
    db: Database, tenant_id: UUID, run_id: UUID, request: ForkRun, *, actor: Actor | None = None
) -> Started:
    """Make a new run from a checkpoint of any run, with what `request` changes.

    Raises `NotFound`, `Invalid` for a step that the run has not committed.
    """
    async with slots_transaction(db, tenant_id) as conn:
        source, held = await _source(db, conn, tenant_id, run_id)
        if request.dry_run and source.state.status not in TERMINAL:
            raise Conflict(
                f"a dry run needs the whole record; this run is {source.state.status}: wait for "
                "its end or cancel it",
                code="RUN_NOT_OVER",
                status=str(source.state.status),
            )
        return await _fork(db, conn, source, held, request, "run.fork", actor)


async def fork_child(db: Database, tenant_id: UUID, source_id: UUID, request: StartRun) -> Started:
    """Make the child that `request` asks for, from the last checkpoint of another run: the child of
    the same call in the run that its parent goes on from. What that one has done is not done again.

    Raises as `fork_run` does.
    """
    async with slots_transaction(db, tenant_id) as conn:
        source, held = await _source(db, conn, tenant_id, source_id)
        return await _fork(db, conn, source, held, ForkRun(child=request), "run.fork", None)


async def _require_not_retried(
    db: Database, conn: Connection, tenant_id: UUID, run_id: UUID
) -> None:
    """Hold the run, so that of two that retry it at once the second sees the first."""
    params = {"tenant_id": tenant_id, "run_id": run_id}
    # Two statements: the second must see what was committed while the first waited.
    _, found = await run_together(conn, [("lock_run", params), ("retry_of", params)], db.timeout_s)
    if found:
        retry = encode("run", found[0]["id"])
        raise Conflict(
            f"{retry} is a retry of this run already; retry that one, or leave if_not_retried out",
            code="ALREADY_RETRIED",
            field="if_not_retried",
            retry=retry,
        )


async def _source(
    db: Database, conn: Connection, tenant_id: UUID, run_id: UUID
) -> tuple[StoredRun, Row]:
    """Read the run and hold it, so that retention takes nothing from it meanwhile; what is
    committed of it never changes. The row is that of `fork_hold.sql`.
    """
    params = {"tenant_id": tenant_id, "run_id": run_id}
    held, rows = await run_together(
        conn, [("fork_hold", params), ("read_run", params)], db.timeout_s
    )
    if not rows or held[0]["pruned"] & Kind.RECORD:
        raise NotFound(f"no run {encode('run', run_id)}", run_id=encode("run", run_id))
    return run_from_row(rows[0]), held[0]


def _require_checkpoints(source: StoredRun, held: Row) -> None:
    """Raise `Conflict` when it is retention that has taken the checkpoints of a run."""
    if held["pruned"] & Kind.CHECKPOINTS:
        raise Conflict(
            "the checkpoints of this run are no longer kept: fork it at step 0, or start anew",
            code="CHECKPOINTS_PRUNED",
            run_id=encode("run", source.id),
        )


async def _fork(
    db: Database,
    conn: Connection,
    source: StoredRun,
    held: Row,
    request: ForkRun,
    action: str,
    actor: Actor | None,
) -> Started:
    # A dry run plays the record from its beginning, any other fork goes on after its end.
    last = 0 if request.dry_run else source.state.step
    step = last if request.step is None else request.step
    if not 0 <= step <= source.state.step:
        raise Invalid(
            f"step {step} is no checkpoint of the run: it has committed {source.state.step}",
            field="step",
            value=step,
            limit=source.state.step,
        )
    retry = action == "run.retry"
    start = await _start_of(db, conn, source, request, action)
    (begun,) = await begin(db, conn, source.tenant_id, [start])
    check_start(begun, start, instead="fork this run: a fork has a session of its own")
    spec = AgentSpec.model_validate(begun["spec"])
    try:
        first = await _first(db, conn, source, step, request, spec)
    except NotFound as error:
        _require_checkpoints(source, held)
        # It came itself from a checkpoint, of a later step.
        raise Invalid(
            f"{encode('run', source.id)} began after step {step}: do this with the run it came "
            "from (see its lineage), or name a later step",
            field="from_step" if action == "run.retry" else "step",
            value=step + 1 if action == "run.retry" else step,
        ) from error
    given = await _allowance(db, conn, source, held)
    if request.child is not None:
        first, given = _as_child(first, given, request.child)
    limits = _fresh_limits(spec, given, first.state, begun["now"])
    kind = spec.first_kind if step == 0 else first.state.next_kind
    if (kind == NODE) != (spec.graph is not None):
        raise Invalid(
            "a graph run goes on as a graph, and an agent's run as an agent: fork it at step 0",
            field="agent_version",
            value=request.agent_version,
        )
    follows = await _follows(db, conn, source) if retry else source.prev_run_id
    state = replace(first.state, limits=limits, next_kind=kind)
    first = replace(first, state=state, follows=follows)
    (started,) = await insert(db, conn, source.tenant_id, [NewRun(begun, spec, start, first)])
    note_made(started.run_id, start.trace_of(started.run_id), source.id, source.trace_id)
    if actor is not None:
        detail = {"made": encode("run", started.run_id), "step": step}
        entry = Entry(action, encode("run", source.id), detail | dict(first.overrides))
        record(conn, source.tenant_id, actor, entry)
    return started


async def _start_of(
    db: Database, conn: Connection, source: StoredRun, request: ForkRun, action: str
) -> StartRun:
    """Return the new run as one that is started: a child as its parent asks for it."""
    if request.child is not None:
        return replace(
            request.child, agent=source.agent_name, agent_version=source.agent_version, input=""
        )
    retry = action == "run.retry"
    return StartRun(
        agent=source.agent_name,
        agent_version=request.agent_version or source.agent_version,
        input=request.input or "",
        # A retry goes on in its session; any other fork is a branch, and has a session of its own.
        session_id=source.session_id if retry else None,
        title=None if retry else f"{action[4:]} of {encode('run', source.id)}",
        user_id=None if retry else await _user(db, conn, source),
        priority=source.priority,
        concurrency_key=source.concurrency_key,  # with its bound, see start_insert.sql
        created_by=request.created_by,
        trace_id=request.trace_id,
    )


async def _follows(db: Database, conn: Connection, source: StoredRun) -> UUID | None:
    """Return the run that a retry comes after: nothing that was said since its source is lost."""
    params = {
        "tenant_id": source.tenant_id,
        "session_id": source.session_id,
        "run_id": source.id,
    }
    (row,) = await run_sql(conn, "retry_follows", params, db.timeout_s)
    follows: UUID | None = row["prev_run_id"]
    return follows


async def _user(db: Database, conn: Connection, source: StoredRun) -> str | None:
    """Return whose run it is: what it may remember goes with it."""
    params = {"tenant_id": source.tenant_id, "session_id": source.session_id}
    rows = await run_sql(conn, "memory_owner", params, db.timeout_s)
    return rows[0]["user_id"] or None if rows else None


async def _first(
    db: Database,
    conn: Connection,
    source: StoredRun,
    step: int,
    request: ForkRun,
    spec: AgentSpec,
) -> First:
    """Return the state at the checkpoint with the changed input, and which messages to copy."""
    state = await checkpoint_state(conn, source, step, db.timeout_s)
    options = options_of(source.overrides)
    earlier = options.earlier if options else 0
    if state.next_kind == MODEL and spec.foreign is not None:
        # What a checkpoint does not say: as the run was started.
        state = replace(state, next_kind=spec.first_kind)
    if step == source.state.step:  # with what people said since that checkpoint
        memo = {k: v for k, v in source.state.memo.items() if k not in OF_ONE_STEP}
        state = replace(state, messages=source.state.messages, memo=memo)
    if step == 0 and source.parent_run_id is not None:  # what its parent had touched
        state = replace(state, memo=memo_with(state.memo, marks_in(source.state.memo)))
    overrides = request.overrides(source)
    if request.input is None:
        return First(state, (), source, (1, state.messages), overrides)
    said: tuple[Message, ...] = (user(request.input),)
    if step == 0:
        return First(state, said, source, (1, earlier), overrides)
    if spec.kind in FOREIGN_KINDS:
        raise Invalid(
            f"an agent of kind {spec.kind} takes another input at step 0 only", field="input"
        )
    if state.next_kind == MODEL:
        grown = replace(state, messages=state.messages + 1)
        return First(grown, said, source, (1, state.messages), overrides)
    steer = [*state.memo.get("steer", ()), request.input]
    steered = replace(state, memo={**state.memo, "steer": steer})
    return First(steered, (), source, (1, state.messages), overrides)


@dataclass(frozen=True, slots=True)
class _Allowance:
    """What a run may use from its beginning on."""

    turns: int
    tokens: int | None
    cost_usd: float | None
    timeout_s: float | None


async def _allowance(db: Database, conn: Connection, source: StoredRun, held: Row) -> _Allowance:
    """Return what the source was given: its caps count from nothing, so that what the checkpoint
    that it began at had used is no part of it.
    """
    caps, began = source.state.limits, RunState()
    if held["forked_step"]:
        with contextlib.suppress(NotFound):  # its checkpoints are no longer kept
            began = await checkpoint_state(conn, source, held["forked_step"], db.timeout_s)
    tokens = began.input_tokens + began.output_tokens
    return _Allowance(
        turns=caps.max_turns - began.turn,
        tokens=None if caps.max_tokens is None else caps.max_tokens - tokens,
        cost_usd=None if caps.max_cost_usd is None else caps.max_cost_usd - began.cost_usd,
        timeout_s=None
        if caps.deadline is None
        else (caps.deadline - held["created_at"]).total_seconds(),
    )


def _as_child(first: First, given: _Allowance, asked: StartRun) -> tuple[First, _Allowance]:
    """Let a child use what its parent gives it, of which it has used nothing yet; what has touched
    its parent has touched it.
    """
    memo = memo_with(first.state.memo, asked.marks)
    state = replace(first.state, memo=memo, input_tokens=0, output_tokens=0, cost_usd=0.0)
    given = replace(given, tokens=asked.max_tokens, cost_usd=asked.max_cost_usd)
    return replace(first, state=state), given


def _fresh_limits(spec: AgentSpec, given: _Allowance, state: RunState, now: datetime) -> Limits:
    """Give the new run the allowance of its source, as far as its agent allows that, on top of what
    its checkpoint has used already.
    """
    tokens = least(spec.max_tokens_total, given.tokens)
    cost_usd = least(spec.max_cost_usd, given.cost_usd)
    timeout_s = least(spec.timeout_s, given.timeout_s)
    return Limits(
        max_turns=state.turn + min(spec.turns, given.turns),
        max_tokens=None if tokens is None else state.input_tokens + state.output_tokens + tokens,
        max_cost_usd=None if cost_usd is None else state.cost_usd + cost_usd,
        deadline=now + timedelta(seconds=timeout_s) if timeout_s else None,
    )
