"""Reading runs for people: one, many, and what happened in them. Used by the API; every read is
bound to a tenant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import ColumnElement, Select, and_, bindparam, exists, func, or_, select
from sqlalchemy.dialects.postgresql import JSONB

from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.core.run import TERMINAL, Status
from harness_common.core.session import NEEDS_A_PERSON
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.partitions import lowest_id
from harness_common.store.schema import (
    agents,
    artifacts,
    messages,
    runs,
    workers,
)


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Which runs to list; what is empty or None does not filter."""

    statuses: Sequence[str] = ()
    """Shown statuses: stored ones and `cancelling`."""
    agent: str | None = None
    session_id: UUID | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    created_after: datetime | None = None
    created_before: datetime | None = None
    error_code: str | None = None
    stop_reason: str | None = None
    parent: UUID | None = None
    retried: bool | None = None
    """Whether a retry of the run was made."""
    child: bool | None = None
    """Whether another run has started it."""
    text: str | None = None
    """Words of the input or the agent's name, looked for in the newest `SEARCHED` runs."""


_ID_BEFORE_ROW: Final = timedelta(minutes=1)
"""An id holds the time at which it was made, which the row may follow by a transaction's length: so
near to a bound rows are compared, beyond it the index leaves them out.
"""
SEARCHED: Final = 5_000
"""How many runs one search for words reads: their inputs have no index, and may be encrypted, when
nothing is found in them.
"""


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events after a cursor. `is_last` when this page holds the newest event there is."""

    events: list[Row]
    status: Status
    is_last: bool

    @property
    def ended(self) -> bool:
        """Tell whether nothing more will come."""
        return self.is_last and self.status in TERMINAL

    @property
    def waits(self) -> bool:
        """Tell whether nothing more comes until a person does something."""
        return self.is_last and self.status in NEEDS_A_PERSON | {Status.PAUSED}


def no_run(run_id: UUID) -> NotFound:
    """Build the error for a run that this tenant does not have."""
    shown = encode("run", run_id)
    return NotFound(f"no run {shown}", field="run_id", value=shown)


async def view_run(db: Database, tenant_id: UUID, run_id: UUID) -> Row:
    """Read one run with its worker's name and whether its agent's model is scripted; raises
    `NotFound`.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(
            conn, "run_view", {"tenant_id": tenant_id, "run_id": run_id}, db.timeout_s
        )
    if not rows:
        raise no_run(run_id)
    return rows[0]


async def list_runs(
    db: Database, tenant_id: UUID, wanted: RunFilter, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return runs, newest first, of those made before the run `before`."""
    query = _run_rows().where(runs.c.tenant_id == tenant_id, *_conditions(wanted))
    if before is not None:
        query = query.where(runs.c.id < before)
    if wanted.text is not None:
        searched = _searched(tenant_id, before).subquery()
        oldest = select(searched.c.id).order_by(searched.c.id).limit(1).scalar_subquery()
        query = query.where(runs.c.id >= oldest)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(runs.c.id.desc()).limit(limit), db.timeout_s)


def _searched(tenant_id: UUID, before: UUID | None) -> Select[tuple[UUID]]:
    query = select(runs.c.id).where(runs.c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(runs.c.id < before)
    return query.order_by(runs.c.id.desc()).limit(SEARCHED)


async def searched_to(db: Database, tenant_id: UUID, before: UUID | None) -> UUID | None:
    """Return the oldest run that one search reads; None when it reaches the first of all."""
    query = _searched(tenant_id, before).offset(SEARCHED - 1).limit(2)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    return rows[0]["id"] if len(rows) == 2 else None


def _run_rows() -> Select[tuple[object, ...]]:
    scripted = func.coalesce(agents.c.spec["model"].astext.startswith("scripted/"), False)
    schema = func.coalesce(runs.c.overrides["output_schema"], agents.c.spec["output_schema"])
    structured = func.coalesce(func.jsonb_typeof(schema) == "object", False)
    return (
        select(
            runs,
            workers.c.name.label("worker_name"),
            scripted.label("scripted"),
            structured.label("structured"),
        )
        .outerjoin(workers, workers.c.incarnation == runs.c.claimed_by)
        .outerjoin(
            agents, and_(agents.c.tenant_id == runs.c.tenant_id, agents.c.id == runs.c.agent_id)
        )
    )


def _conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    columns = {
        runs.c.agent_name: wanted.agent,
        runs.c.session_id: wanted.session_id,
        runs.c.error["code"].astext: wanted.error_code,
        runs.c.stop_reason: wanted.stop_reason,
        runs.c.parent_run_id: wanted.parent,
    }
    out = [column == value for column, value in columns.items() if value is not None]
    if wanted.text is not None:
        found = (
            column.icontains(wanted.text, autoescape=True)
            for column in (runs.c.input, runs.c.agent_name)
        )
        out.append(or_(*found))
    if wanted.statuses:
        out.append(or_(*(_has_status(s) for s in wanted.statuses)))
    if wanted.tags:
        out.append(runs.c.tags.cast(JSONB).contains(dict(wanted.tags)))
    if wanted.created_after is not None:
        out.append(runs.c.created_at >= wanted.created_after)
        out.append(runs.c.id >= lowest_id(wanted.created_after - _ID_BEFORE_ROW))
    if wanted.created_before is not None:
        out.append(runs.c.created_at < wanted.created_before)
        out.append(runs.c.id < lowest_id(wanted.created_before + _ID_BEFORE_ROW))
    if wanted.retried is not None:
        out.append(_was_retried() if wanted.retried else ~_was_retried())
    if wanted.child is not None:
        parent = runs.c.parent_run_id
        out.append(parent.is_not(None) if wanted.child else parent.is_(None))
    return out


def _was_retried() -> ColumnElement[bool]:
    """Match runs of which a retry was made: it goes on in its source's session, which no fork
    does.
    """
    retry = runs.alias("retry")
    same = (
        retry.c.tenant_id == runs.c.tenant_id,
        retry.c.forked_from == runs.c.id,
        retry.c.session_id == runs.c.session_id,
    )
    return exists(select(retry.c.id).where(*same))


def _has_status(shown: str) -> ColumnElement[bool]:
    """Match a shown status. It stands in the statement itself: whether a partial index has all that
    is asked for is decided when a plan is made.
    """
    status = Status.RUNNING if shown == "cancelling" else Status(shown)
    same = runs.c.status == bindparam(None, status.value, literal_execute=True)
    if status is Status.RUNNING:
        asked = runs.c.cancel_requested
        return and_(same, asked if shown == "cancelling" else ~asked)
    if status in TERMINAL:
        return and_(same, runs.c.finished_at.is_not(None))
    return same


async def read_events(
    db: Database, tenant_id: UUID, run_id: UUID, *, after: int, limit: int
) -> EventPage:
    """Read events in order, `seq` greater than `after`; raises `NotFound`."""
    params = {"tenant_id": tenant_id, "run_id": run_id, "after": after, "limit": limit}
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "events_after", params, db.timeout_s)
    if not rows:
        raise no_run(run_id)
    found = [row for row in rows if row["seq"] is not None]
    status = Status(rows[0]["status"])
    last = found[-1]["seq"] if found else after
    # Fewer than asked for are all there are: those of a run whose time is over are gone.
    over = len(found) < limit and status in TERMINAL
    return EventPage(found, status, over or last >= rows[0]["next_seq"] - 1)


async def read_progress(db: Database, tenant_id: UUID, run_ids: Sequence[UUID]) -> list[Row]:
    """Return `id`, `status` and `last_seq` of those runs that this tenant has."""
    async with db.tenant_transaction(tenant_id) as conn:
        params = {"tenant_id": tenant_id, "run_ids": list(run_ids)}
        return await run_sql(conn, "runs_progress", params, db.timeout_s)


async def _require_run(conn: Connection, tenant_id: UUID, run_id: UUID, timeout_s: float) -> None:
    params = {"tenant_id": tenant_id, "run_id": run_id}
    if not await run_sql(conn, "run_exists", params, timeout_s):
        raise no_run(run_id)


async def read_checkpoints(
    db: Database, tenant_id: UUID, run_id: UUID, *, after: int, limit: int
) -> list[Row]:
    """Return checkpoints in order, of steps greater than `after`; raises `NotFound` for the run."""
    params = {"tenant_id": tenant_id, "run_id": run_id, "after": after, "limit": limit}
    async with db.tenant_transaction(tenant_id) as conn:
        await _require_run(conn, tenant_id, run_id, db.timeout_s)
        return await run_sql(conn, "run_checkpoints", params, db.timeout_s)


async def read_answers(
    db: Database, tenant_id: UUID, run_id: UUID, *, steps: Sequence[int]
) -> dict[int, Row]:
    """Return the payload of the event `model.answered`, or `context.compacted`, of those steps that
    have one; of several model nodes in one step the last, with the tokens of all.
    """
    found: dict[int, Row] = {}
    for row in await _of_steps(db, tenant_id, run_id, "answers_of_steps", steps):
        before = found.get(row["step"], {})
        found[row["step"]] = row["payload"] | {
            name: row["payload"].get(name, 0) + before[name]
            for name in ("input_tokens", "output_tokens")
            if name in before
        }
    return found


async def read_failed_attempts(
    db: Database, tenant_id: UUID, run_id: UUID, *, after: int = 0, limit: int
) -> list[Row]:
    """Return the events `step.failed` in order, `seq` greater than `after`; raises `NotFound`."""
    params = {"tenant_id": tenant_id, "run_id": run_id, "after": after, "limit": limit}
    async with db.tenant_transaction(tenant_id) as conn:
        await _require_run(conn, tenant_id, run_id, db.timeout_s)
        return await run_sql(conn, "failed_attempts", params, db.timeout_s)


async def read_tool_calls(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    after: tuple[int, int] = (0, -1),
    to_step: int | None = None,
    limit: int,
) -> list[Row]:
    """Return the ledger in order, after the call (step, index); raises `NotFound` for the run."""
    params = {
        "tenant_id": tenant_id, "run_id": run_id, "after_step": after[0], "after_idx": after[1],
        "to_step": to_step, "limit": limit,
    }  # fmt: skip
    async with db.tenant_transaction(tenant_id) as conn:
        await _require_run(conn, tenant_id, run_id, db.timeout_s)
        return await run_sql(conn, "run_calls", params, db.timeout_s)


async def read_calls_of_steps(
    db: Database, tenant_id: UUID, run_id: UUID, *, steps: Sequence[int]
) -> dict[int, list[Row]]:
    """Return by step how the calls between the first and the last of some steps went, without what
    they were given and gave.
    """
    found: dict[int, list[Row]] = {}
    for row in await _of_steps(db, tenant_id, run_id, "calls_of_steps", steps):
        found.setdefault(row["step"], []).append(row)
    return found


async def count_failed_attempts(
    db: Database, tenant_id: UUID, run_id: UUID, *, steps: Sequence[int]
) -> dict[int, int]:
    """Count by step the attempts that failed, between the first and the last of some steps."""
    rows = await _of_steps(db, tenant_id, run_id, "failed_in_steps", steps)
    return {row["step"]: row["failed"] for row in rows}


async def _of_steps(
    db: Database, tenant_id: UUID, run_id: UUID, name: str, steps: Sequence[int]
) -> list[Row]:
    if not steps:
        return []
    key = {"tenant_id": tenant_id, "run_id": run_id}
    async with db.tenant_transaction(tenant_id) as conn:
        span = {"first": min(steps), "last": max(steps)}
        return await run_sql(conn, name, key | span, db.timeout_s)


async def read_messages(
    db: Database, tenant_id: UUID, run_id: UUID, *, after: int, limit: int
) -> list[Row]:
    """Return a run's own messages in order; raises `NotFound` for the run."""
    params = {"tenant_id": tenant_id, "run_id": run_id, "after": after, "limit": limit}
    async with db.tenant_transaction(tenant_id) as conn:
        await _require_run(conn, tenant_id, run_id, db.timeout_s)
        return await run_sql(conn, "run_messages", params, db.timeout_s)


async def read_messages_of_steps(
    db: Database, tenant_id: UUID, run_id: UUID, *, first: int, last: int
) -> list[Row]:
    """Return a run's own messages of some steps, in order."""
    c = messages.c
    query = (
        select(c.n, c.step, c.role, c.trust, c.body)
        .where(c.tenant_id == tenant_id, c.run_id == run_id, c.step >= first, c.step <= last)
        .order_by(c.n)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query, db.timeout_s)


async def list_artifacts(
    db: Database, tenant_id: UUID, run_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return a run's artifacts, newest first; raises `NotFound` for the run."""
    c = artifacts.c
    query = select(artifacts).where(c.tenant_id == tenant_id, c.run_id == run_id)
    if before is not None:
        query = query.where(c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        await _require_run(conn, tenant_id, run_id, db.timeout_s)
        return await run_core(conn, query.order_by(c.id.desc()).limit(limit), db.timeout_s)


async def read_artifact_row(db: Database, tenant_id: UUID, artifact_id: UUID) -> Row:
    """Read an artifact's record; raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(
            conn, "artifact_read", {"tenant_id": tenant_id, "id": artifact_id}, db.timeout_s
        )
    if not rows:
        shown = encode("artifact", artifact_id)
        raise NotFound(f"no artifact {shown}", field="artifact_id", value=shown)
    return rows[0]
