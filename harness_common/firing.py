"""Firing: the transaction in which a time of a schedule becomes a run, or the record of why not.

Called by the scheduler for what is due and by the API for `trigger`. A firing's row has the time in
its key and is written in the transaction of its run, under the schedule's row lock: one firing
makes one run, whoever else tries.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from harness_common.commands import Started, StartRun, cancel_run, start_in
from harness_common.core.errors import Conflict, HarnessError, NotFound
from harness_common.core.ids import decode, encode
from harness_common.core.message import Json
from harness_common.core.schedule import ON_TIME_S, CatchUp, Cron, Missed, Outcome, Overlap, due
from harness_common.store import json_codec
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, run_sql, run_together
from harness_common.store.db import Database
from harness_common.store.schedules import Definition, definition_from_json

MAX_WAITING: Final = 100
"""Firings of one schedule that may wait for its runs; one more is skipped."""
MAX_OPEN: Final = 1_000
"""Runs of one schedule that are remembered as going, newest first."""
_RUN_FIELDS: Final = frozenset(f.name for f in fields(StartRun)) - {
    "created_by", "trace_id", "idempotency_key", "body_digest", "idempotency_ttl_s", "parent",
    "on_busy",
}  # fmt: skip

Check = Callable[[Connection], Awaitable[None]]
"""Asked first in each transaction: raises when the caller may not write (any more)."""


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of one firing. `stopped` names runs asked to stop and the processes to tell."""

    at: datetime
    outcome: Outcome
    reason: str | None = None
    run: Started | None = None
    stopped: tuple[tuple[UUID, UUID | None], ...] = ()
    more: bool = False
    """Something else of this schedule is due already."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A schedule under its row lock."""

    tenant_id: UUID
    id: UUID
    name: str
    definition: Definition
    next_at: datetime | None
    last_at: datetime
    paused: bool
    firings: int
    waiting: int
    now: datetime
    going: tuple[UUID, ...]
    waiting_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Want:
    """A firing to decide about. A manual one (`by`) moves no times and counts for nothing."""

    at: datetime
    overlap: Overlap
    by: str | None = None
    was_waiting: bool = False


@dataclass(frozen=True, slots=True)
class _Stop:
    """These runs must be asked to stop before the firing can go on."""

    runs: tuple[UUID, ...]


class _DecidedBefore(Exception):
    """The firing has its row already: nothing of this transaction may stay."""


async def fire_due(
    db: Database, tenant_id: UUID, schedule_id: UUID, check: Check, wait_s: float | None = None
) -> Fired | None:
    """Decide about the oldest thing that is due for a schedule; None when nothing is.

    What cannot start (agent gone, session closed) is recorded as failed. Safe to repeat and to run
    twice at once. Raises `RowsHeld` when another holds its rows for longer than `wait_s`.
    """

    def pick(held: _Held) -> _Want | Missed | None:
        if held.paused:
            return None
        overlap = held.definition.overlap
        if held.waiting_at is not None and not held.going:
            return _Want(held.waiting_at, overlap, was_waiting=True)
        if held.next_at is None or held.next_at > held.now:
            return None
        found = due(
            held.definition.plan(held.id), held.last_at, held.now,
            held.definition.catch_up, held.definition.window_s, most=1,
        )  # fmt: skip
        if found.missed is not None:
            return found.missed
        return _Want(found.fire[0], overlap) if found.fire else None

    return await _fire(db, tenant_id, schedule_id, check, pick, wait_s=wait_s)


async def trigger(
    db: Database, tenant_id: UUID, schedule_id: UUID, *, overlap: Overlap | None, actor: Actor
) -> Fired:
    """Fire now, also when paused; the times to come stay as they are. `overlap` goes before the
    schedule's own.

    Raises `NotFound` (schedule, agent, session) and `Conflict`; nothing is recorded then.
    """

    async def anybody(_: Connection) -> None:
        return None

    def pick(held: _Held) -> _Want:
        return _Want(held.now, overlap or held.definition.overlap, by=actor.name)

    fired = await _fire(db, tenant_id, schedule_id, anybody, pick, actor)
    if fired is None:
        raise NotFound(f"no schedule {encode('schedule', schedule_id)}", field="schedule")
    return fired


async def _fire(
    db: Database,
    tenant_id: UUID,
    schedule_id: UUID,
    check: Check,
    pick: Callable[[_Held], _Want | Missed | None],
    actor: Actor | None = None,
    wait_s: float | None = None,
) -> Fired | None:
    """Decide in one transaction; runs that must stop first are stopped in ones of their own, since
    a transaction that holds two runs and their tenant could wait for a worker that waits for it.
    """
    stopped: dict[UUID, UUID | None] = {}
    while True:
        try:
            async with db.tenant_transaction(tenant_id, wait_s) as conn:
                await check(conn)
                held = await _hold(db, conn, tenant_id, schedule_id)
                if held is None:
                    return None
                free = replace(held, going=tuple(r for r in held.going if r not in stopped))
                done = await _decide(db, conn, free, pick(held), actor)
        except _DecidedBefore:
            await _move_on(db, tenant_id, schedule_id, check, pick)
            return None
        if not isinstance(done, _Stop):
            return done and replace(done, stopped=tuple(stopped.items()))
        for run_id in done.runs:
            async with db.tenant_transaction(tenant_id) as conn:
                await check(conn)
            by, why = encode("schedule", schedule_id), "the next firing of its schedule"
            asked = await cancel_run(db, tenant_id, run_id, by=by, reason=why, actor=actor)
            stopped[run_id] = asked.claimed_by


async def _hold(db: Database, conn: Connection, tenant_id: UUID, schedule_id: UUID) -> _Held | None:
    key = {"tenant_id": tenant_id, "id": schedule_id}
    rows, more = await run_together(
        conn, [("schedule_lock", key), ("schedule_going", key)], db.timeout_s
    )
    if not rows or not more:
        return None
    row = rows[0] | more[0]
    return _Held(
        tenant_id=tenant_id,
        id=row["id"],
        name=row["name"],
        definition=definition_from_json(row["spec"]),
        next_at=row["next_at"],
        last_at=row["last_at"],
        paused=row["paused_at"] is not None,
        firings=row["firings"],
        waiting=row["waiting"],
        now=row["now"],
        going=tuple(row["going"]),
        waiting_at=row["waiting_at"],
    )


async def _decide(
    db: Database, conn: Connection, held: _Held, want: _Want | Missed | None, actor: Actor | None
) -> Fired | _Stop | None:
    if want is None:
        if not held.paused and held.next_at is not None and held.next_at <= held.now:
            # Looked at too early, or its zone has other rules now: reckon again.
            await _move(db, conn, held, held.last_at)
        return None
    if isinstance(want, Missed):
        return await _miss(db, conn, held, want)
    outcome, reason = _overlap(held, want)
    if outcome is None:
        return _Stop(held.going)
    run: Started | None = None
    if outcome is Outcome.STARTED:
        try:
            run = await start_in(db, conn, held.tenant_id, request(held, want), actor=None)
        except (HarnessError, ValueError) as error:
            if want.by is not None:
                raise
            outcome, reason = _failure(error)
    fired = Fired(want.at, outcome, reason, run)
    more = await _record(db, conn, held, want, fired)
    if actor is not None:
        detail: dict[str, Json] = {"name": held.name, "outcome": outcome}
        if run is not None:
            detail["run"] = encode("run", run.run_id)
        entry = Entry("schedule.trigger", encode("schedule", held.id), detail)
        record(conn, held.tenant_id, actor, entry)
    return replace(fired, more=more)


def _overlap(held: _Held, want: _Want) -> tuple[Outcome | None, str | None]:
    """Say what the runs that are going make of a firing; None is "stop them first"."""
    if want.was_waiting or want.overlap is Overlap.ALLOW:
        return Outcome.STARTED, None
    if want.overlap is Overlap.ENQUEUE:
        if not held.going and not held.waiting:
            return Outcome.STARTED, None
        if held.waiting >= MAX_WAITING:
            return Outcome.SKIPPED, f"{MAX_WAITING} firings wait already"
        return Outcome.WAITING, _going(held)
    if not held.going:
        return Outcome.STARTED, None
    if want.overlap is Overlap.CANCEL_PREVIOUS:
        return None, None
    return Outcome.SKIPPED, _going(held)


def _going(held: _Held) -> str:
    if not held.going:
        return "earlier firings wait"
    return f"{encode('run', held.going[-1])} is not over"


def _failure(error: HarnessError | ValueError) -> tuple[Outcome, str]:
    if isinstance(error, HarnessError):
        busy = error.error_code == "SESSION_BUSY"
        return (Outcome.SKIPPED if busy else Outcome.FAILED), error.message
    return Outcome.FAILED, f"the agent's definition cannot be read: {error}"[:500]


def request(held: _Held, want: _Want) -> StartRun:
    """Build the request for the run of a firing."""
    run = {k: v for k, v in held.definition.run.items() if k in _RUN_FIELDS and v is not None}
    if "session_id" in run:
        run["session_id"] = decode("session", run["session_id"])
    run["skills"] = tuple(run.get("skills", ()))
    return StartRun(
        **run
        | {
            "input": fill(run["input"], _placeholders(held, want.at)),
            "tags": {**run.get("tags", {}), "schedule": held.name},
            "created_by": want.by or encode("schedule", held.id),
        }
    )


def _placeholders(held: _Held, at: datetime) -> Mapping[str, str]:
    when = held.definition.when
    zone = ZoneInfo(when.time_zone) if isinstance(when, Cron) else UTC
    return {
        "{scheduled_at}": at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "{scheduled_date}": at.astimezone(zone).date().isoformat(),
        "{schedule}": held.name,
    }


def fill(text: str, values: Mapping[str, str]) -> str:
    """Put values in the place of their names; other braces stay as they are."""
    for name, value in values.items():
        text = text.replace(name, value)
    return text


async def _miss(db: Database, conn: Connection, held: _Held, missed: Missed) -> Fired:
    definition, late_s = held.definition, (held.now - missed.first).total_seconds()
    limit_s = ON_TIME_S if definition.catch_up is CatchUp.NONE else definition.window_s
    reason = f"{late_s:.0f} s late when a scheduler looked"
    if late_s > limit_s + definition.jitter_s:
        reason += f", more than {limit_s:g} s (catch_up {definition.catch_up})"
    else:
        reason += f", and a later firing was due (catch_up {definition.catch_up})"
    want = _Want(missed.first, held.definition.overlap)
    fired = Fired(missed.first, Outcome.MISSED, reason)
    more = await _record(db, conn, held, want, fired, until=missed.until)
    return replace(fired, more=more)


async def _record(
    db: Database,
    conn: Connection,
    held: _Held,
    want: _Want,
    fired: Fired,
    until: datetime | None = None,
) -> bool:
    """Write the firing and move the schedule on; tell whether more is due. Raises
    `_DecidedBefore`.
    """
    moves = want.by is None and not want.was_waiting
    counts = moves and fired.outcome in {Outcome.STARTED, Outcome.WAITING}
    last_at = (until or want.at) if moves else held.last_at
    firings = held.firings + counts
    next_at = held.next_at
    if moves:
        next_at = held.definition.next_at(held.id, last_at, firings)
    open_runs = [*held.going, *([fired.run.run_id] if fired.run else [])][-MAX_OPEN:]
    detail: dict[str, Json] = {"reason": fired.reason}
    if want.by is not None:
        detail["by"] = want.by
    if until is not None and until > want.at:
        detail["until"] = until.isoformat()
    rows = await run_sql(
        conn,
        "schedule_fired",
        {
            "tenant_id": held.tenant_id,
            "id": held.id,
            "at": want.at,
            "run_id": fired.run.run_id if fired.run else None,
            "outcome": fired.outcome,
            "detail": json_codec.dumps_text(detail),
            "was_waiting": want.was_waiting,
            "last_at": last_at,
            "next_at": next_at,
            "firings": int(counts),
            "waiting": (fired.outcome is Outcome.WAITING) - int(want.was_waiting),
            "open_runs": open_runs,
        },
        db.timeout_s,
    )
    if not rows:
        raise _DecidedBefore
    return next_at is not None and next_at <= held.now


async def _move(db: Database, conn: Connection, held: _Held, last_at: datetime) -> None:
    next_at = held.definition.next_at(held.id, last_at, held.firings)
    params: dict[str, Any] = {"tenant_id": held.tenant_id, "id": held.id}
    await run_sql(
        conn, "schedule_move", params | {"last_at": last_at, "next_at": next_at}, db.timeout_s
    )


async def _move_on(
    db: Database,
    tenant_id: UUID,
    schedule_id: UUID,
    check: Check,
    pick: Callable[[_Held], _Want | Missed | None],
) -> None:
    """Leave a time behind that was decided before."""
    async with db.tenant_transaction(tenant_id) as conn:
        await check(conn)
        held = await _hold(db, conn, tenant_id, schedule_id)
        want = pick(held) if held is not None else None
        if held is None or want is None:
            return
        if isinstance(want, _Want) and want.by is not None:
            raise Conflict("the schedule fires at this very moment; try again")
        await _move(db, conn, held, want.at if isinstance(want, _Want) else want.until)
