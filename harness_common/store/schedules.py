"""Schedules as stored: definitions that people make and change, and what became of their firings.

Used by the API; `firing` reads the definition and records what fires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, delete, func, insert, select, update

from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.core.ids import PREFIXES, decode, encode
from harness_common.core.message import Json
from harness_common.core.schedule import (
    At,
    CatchUp,
    Overlap,
    Schedule,
    When,
    check,
    fires_at,
    next_after,
    when_from_json,
    when_to_json,
)
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import agents, schedule_firings, schedules, sessions


@dataclass(frozen=True, slots=True)
class Definition:
    """What somebody wants: when, under which rules, and which run (the fields of a run's request,
    `session_id` as external id).
    """

    when: When
    run: Mapping[str, Any] = field(default_factory=dict)
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.LAST
    window_s: float = 60.0
    jitter_s: float = 0.0
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    max_firings: int | None = None

    def plan(self, schedule_id: UUID) -> Schedule:
        """Return when the schedule of that id fires."""
        return Schedule(self.when, self.starts_at, self.ends_at, self.jitter_s, schedule_id.hex)

    def next_at(self, schedule_id: UUID, last_at: datetime, firings: int) -> datetime | None:
        """Return when somebody must look again, after `firings` that count and the time `last_at`;
        None when it has ended.
        """
        if self.max_firings is not None and firings >= self.max_firings:
            return None
        plan = self.plan(schedule_id)
        at = next_after(plan, last_at)
        return None if at is None else fires_at(plan, at)


Make = Callable[[datetime], Definition]
"""Gives a definition when it is told Postgres time."""
Change = Callable[[Definition, datetime], Definition]


def definition_to_json(found: Definition) -> dict[str, Json]:
    """Write a definition as it is stored."""
    return {
        "when": when_to_json(found.when),
        "run": dict(found.run),
        "overlap": found.overlap,
        "catch_up": found.catch_up,
        "window_s": found.window_s,
        "jitter_s": found.jitter_s,
        "starts_at": found.starts_at.isoformat() if found.starts_at else None,
        "ends_at": found.ends_at.isoformat() if found.ends_at else None,
        "max_firings": found.max_firings,
    }


def definition_from_json(found: Mapping[str, Any]) -> Definition:
    """Read what `definition_to_json` wrote."""
    return Definition(
        when_from_json(found["when"]),
        found["run"],
        Overlap(found["overlap"]),
        CatchUp(found["catch_up"]),
        found["window_s"],
        found["jitter_s"],
        datetime.fromisoformat(found["starts_at"]) if found["starts_at"] else None,
        datetime.fromisoformat(found["ends_at"]) if found["ends_at"] else None,
        found["max_firings"],
    )


async def create_schedule(
    db: Database, tenant_id: UUID, name: str, make: Make, *, paused: bool, actor: Actor
) -> Row:
    """Make a schedule; it may fire as soon as this returns.

    Raises `Invalid` (it could never fire, or contradicts itself), `NotFound` (agent, session) and
    `Conflict` (the name is taken).
    """
    async with db.tenant_transaction(tenant_id) as conn:
        new = (await run_core(conn, select(func.uuid7().label("id"), _now()), db.timeout_s))[0]
        found = make(new["now"])
        await _check(db, conn, tenant_id, found)
        next_at = found.next_at(new["id"], new["now"], 0)
        if next_at is None:
            raise never(found)
        taken = select(schedules.c.id).where(_is(tenant_id, name))
        if await run_core(conn, taken, db.timeout_s):
            raise _taken(name)
        statement = insert(schedules).values(
            tenant_id=tenant_id,
            id=new["id"],
            name=name,
            spec=definition_to_json(found),
            last_at=new["now"],
            next_at=None if paused else next_at,
            paused_at=new["now"] if paused else None,
            created_by=actor.name,
        )
        (row,) = await run_core(conn, statement.returning(schedules), db.timeout_s)
        _note(conn, row, actor, "create", {"when": when_to_json(found.when)})
        return _timed(row, new["now"])


async def read_schedule(db: Database, tenant_id: UUID, ref: str) -> Row:
    """Read one schedule by id or name, with Postgres time as `now`; raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        return await _read(db, conn, tenant_id, ref)


async def list_schedules(
    db: Database, tenant_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return schedules, newest first, of those older than `before`."""
    query = select(schedules, _now()).where(schedules.c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(schedules.c.id < before)
    query = query.order_by(schedules.c.id.desc()).limit(limit)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query, db.timeout_s)


async def change_schedule(
    db: Database, tenant_id: UUID, ref: str, change: Change, actor: Actor
) -> Row:
    """Change a definition. New times count from now: what was missed under the old ones is
    dropped. Raises as `create_schedule` does.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(db, conn, tenant_id, ref, hold=True)
        old = definition_from_json(row["spec"])
        new = change(old, row["now"])
        if new == old:
            return row
        await _check(db, conn, tenant_id, new)
        goes_on = _times(new) == _times(old) and row["next_at"] is not None
        last_at = row["last_at"] if goes_on else row["now"]
        next_at = new.next_at(row["id"], last_at, row["firings"])
        if next_at is None and not goes_on:
            raise never(new)
        values = {
            "spec": definition_to_json(new),
            "last_at": last_at,
            "next_at": None if row["paused_at"] else next_at,
        }
        changed = await _write(db, conn, row, values)
        names = [k for k, v in definition_to_json(new).items() if v != row["spec"].get(k)]
        _note(conn, row, actor, "update", {"fields": sorted(names)})
        return changed


async def pause_schedule(db: Database, tenant_id: UUID, ref: str, reason: str, actor: Actor) -> Row:
    """Let nothing fire until `resume_schedule`; safe to repeat. Runs that are going go on."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(db, conn, tenant_id, ref, hold=True)
        if row["paused_at"] is not None:
            return row
        values = {"paused_at": row["now"], "pause_reason": reason or None, "next_at": None}
        changed = await _write(db, conn, row, values)
        _note(conn, row, actor, "pause", {"reason": reason})
        return changed


async def resume_schedule(db: Database, tenant_id: UUID, ref: str, actor: Actor) -> Row:
    """Let it fire again, from now on: what fell into the pause is dropped. Safe to repeat."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(db, conn, tenant_id, ref, hold=True)
        if row["paused_at"] is None:
            return row
        found = definition_from_json(row["spec"])
        next_at = found.next_at(row["id"], row["now"], row["firings"])
        values = {"paused_at": None, "pause_reason": None, "last_at": row["now"]}
        changed = await _write(db, conn, row, values | {"next_at": next_at})
        _note(conn, row, actor, "resume", {})
        return changed


async def delete_schedule(db: Database, tenant_id: UUID, ref: str, actor: Actor) -> None:
    """Remove a schedule and the record of its firings; its runs stay. Raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(db, conn, tenant_id, ref, hold=True)
        gone = delete(schedules).where(
            schedules.c.tenant_id == tenant_id, schedules.c.id == row["id"]
        )
        await run_core(conn, gone, db.timeout_s)
        _note(conn, row, actor, "delete", {})


async def list_firings(
    db: Database, tenant_id: UUID, ref: str, *, before: datetime | None, limit: int
) -> list[Row]:
    """Return what became of each firing, newest first; raises `NotFound` for the schedule."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _read(db, conn, tenant_id, ref)
        firings = schedule_firings.c
        query = select(schedule_firings).where(
            firings.tenant_id == tenant_id, firings.schedule_id == row["id"]
        )
        if before is not None:
            query = query.where(firings.at < before)
        return await run_core(conn, query.order_by(firings.at.desc()).limit(limit), db.timeout_s)


def never(found: Definition) -> Invalid:
    """Build the error for a schedule that has no time to come."""
    if isinstance(found.when, At):
        at = found.when.time.isoformat()
        return Invalid(
            f"at is {at}, which is over or outside starts_at and ends_at; name a time to come",
            field="when.at",
            value=at,
        )
    return Invalid(
        "the schedule would never fire: no time of it is to come before ends_at and within "
        "max_firings; change one of these",
        field="ends_at" if found.ends_at else "max_firings",
        value=found.ends_at.isoformat() if found.ends_at else found.max_firings,
    )


def _now() -> ColumnElement[Any]:
    return func.clock_timestamp().label("now")


def _timed(row: Row, now: datetime) -> Row:
    return row | {"now": now}


def _times(found: Definition) -> tuple[object, ...]:
    return found.when, found.starts_at, found.ends_at, found.jitter_s


def _is(tenant_id: UUID, ref: str) -> ColumnElement[bool]:
    """Match a schedule by its id, else by its name; no name begins like an id."""
    mine = schedules.c.tenant_id == tenant_id
    if ref.startswith(PREFIXES["schedule"]):
        return mine & (schedules.c.id == decode("schedule", ref))
    return mine & (schedules.c.name == ref)


async def _read(
    db: Database, conn: Connection, tenant_id: UUID, ref: str, *, hold: bool = False
) -> Row:
    query = select(schedules, _now()).where(_is(tenant_id, ref))
    rows = await run_core(conn, query.with_for_update() if hold else query, db.timeout_s)
    if not rows:
        raise NotFound(f"no schedule {ref!r}", field="schedule", value=ref)
    return rows[0]


async def _write(db: Database, conn: Connection, row: Row, values: Mapping[str, Any]) -> Row:
    statement = (
        update(schedules)
        .where(schedules.c.tenant_id == row["tenant_id"], schedules.c.id == row["id"])
        .values(**values, updated_at=func.clock_timestamp())
        .returning(schedules)
    )
    (changed,) = await run_core(conn, statement, db.timeout_s)
    return _timed(changed, row["now"])


def _note(conn: Connection, row: Row, actor: Actor, verb: str, detail: dict[str, Json]) -> None:
    entry = Entry(
        f"schedule.{verb}", encode("schedule", row["id"]), {"name": row["name"], **detail}
    )
    record(conn, row["tenant_id"], actor, entry)


def _taken(name: str) -> Conflict:
    return Conflict(
        f"a schedule {name!r} exists; change it with PATCH /v1/schedules/{name}, or take another "
        "name",
        code="SCHEDULE_EXISTS",
        field="name",
        value=name,
    )


async def _check(db: Database, conn: Connection, tenant_id: UUID, found: Definition) -> None:
    """Raise what is wrong with a definition by itself, or with what it names."""
    check(found.when)
    _check_order(found)
    run = found.run
    wanted = select(agents.c.id).where(
        agents.c.tenant_id == tenant_id, agents.c.name == run["agent"]
    )
    version = run.get("agent_version")
    if version is not None:
        wanted = wanted.where(agents.c.version == version)
    if not await run_core(conn, wanted.limit(1), db.timeout_s):
        which = f" version {version}" if version is not None else ""
        raise NotFound(
            f"no agent {run['agent']!r}{which}; create it with `harness agents apply FILE`",
            code="AGENT_NOT_FOUND",
            field="run.agent",
            value=run["agent"],
        )
    if run.get("session_id") is not None:
        await _check_session(db, conn, tenant_id, found)


async def _check_session(
    db: Database, conn: Connection, tenant_id: UUID, found: Definition
) -> None:
    session_id = found.run["session_id"]
    if found.overlap not in {Overlap.SKIP, Overlap.ENQUEUE}:
        raise Invalid(
            f"overlap {str(found.overlap)!r} does not go with a session_id, since a session has "
            "one run at a time; use skip or enqueue, or leave session_id out",
            field="overlap",
            value=str(found.overlap),
            limit=["skip", "enqueue"],
        )
    query = select(sessions.c.closed_at).where(
        sessions.c.tenant_id == tenant_id, sessions.c.id == decode("session", session_id)
    )
    rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        raise NotFound(f"no session {session_id}", field="run.session_id", value=session_id)
    if rows[0]["closed_at"] is not None:
        raise Conflict("the session is closed; name another one", field="run.session_id")


def _check_order(found: Definition) -> None:
    if found.starts_at and found.ends_at and found.starts_at > found.ends_at:
        raise Invalid(
            "starts_at is later than ends_at; exchange them or leave one out",
            field="starts_at",
            value=found.starts_at.isoformat(),
            limit=found.ends_at.isoformat(),
        )
