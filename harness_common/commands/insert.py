"""Writing a new run in its first state: fresh with its input, or as a copy of a checkpoint."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from harness_common.broker.publish import Doorbell, urgency
from harness_common.commands.request import Parent, Started, StartRun
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.request_options import REQUEST
from harness_common.core import events as ev
from harness_common.core.events import Event
from harness_common.core.ids import encode
from harness_common.core.inputs import Admit
from harness_common.core.message import Json, Message, dumps
from harness_common.core.rules import advance
from harness_common.core.run import RunState, Transition, holds_slot, wake_at
from harness_common.store import json_codec
from harness_common.store.connection import Connection, Row
from harness_common.store.db import Database
from harness_common.store.keyring import seal_commits
from harness_common.store.rows import StoredRun
from harness_common.store.skill_pins import pin
from harness_common.store.writes import RING_AFTER_S, encode_snapshot, state_columns


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
    follows: UUID | None = None
    """The run that a copy comes after in its conversation."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be written: what was read of its surroundings (`commands.begin`), its agent, what
    was asked, and how it begins.
    """

    begun: Row
    spec: AgentSpec
    request: StartRun
    first: First


@dataclass(slots=True)
class _Room:
    """What is left for runs that begin together, one after the other."""

    running: int
    others_wait: bool


async def insert(
    db: Database, conn: Connection, tenant_id: UUID, new: Sequence[NewRun]
) -> list[Started]:
    """Write runs in their first states, in this order: each admitted at once if there is room and
    nobody waits.
    """
    if not new:
        return []
    room = _Room(new[0].begun["running"], new[0].begun["others_wait"])
    bodies, made = [], []
    for one in new:
        pinned = replace(one, first=await _with_skills(db, conn, tenant_id, one))
        newcomer = room.running == 0
        begins = _begin(pinned, room)
        bodies.append(_body(tenant_id, pinned, begins))
        made.append(_started(tenant_id, pinned, begins, newcomer=newcomer))
    stored = await seal_commits(conn, bodies, db.timeout_s)
    # With COMMIT, so that the slots are held no longer.
    conn.run_later("start_insert", {"runs": json_codec.dumps_text(stored)})
    return made


def _begin(new: NewRun, room: _Room) -> Transition:
    """Return how a run begins: created, and admitted if it has a place, which it takes."""
    begun, state = new.begun, new.first.state
    created = Transition(state, (Event(ev.RUN_CREATED, _about(begun, new.request, new.first)),))
    if _held_for(new) is not None:
        return created
    if room.running >= begun["may_run"] or room.others_wait:
        room.others_wait = True
        return created
    admitted = advance(state, [Admit()], begun["now"])
    room.running += holds_slot(admitted.state)
    return replace(admitted, events=created.events + admitted.events)


def _held_for(new: NewRun) -> str | None:
    return new.first.held_for or ("key" if new.request.concurrency_key is not None else None)


def _body(tenant_id: UUID, new: NewRun, made: Transition) -> dict[str, Any]:
    """Return the run as `start_insert.sql` writes it."""
    begun, request, first = new.begun, new.request, new.first
    run_id, source = begun["run_id"], first.source
    copied = source is not None and made.state.step > 0
    snapshot = encode_snapshot(made.state) if copied else None
    return {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "session_id": _session(begun),
        "new_session": begun["session_id"] is None,
        "agent_id": begun["agent_id"],
        "agent_name": begun["agent_name"],
        "agent_version": begun["agent_version"],
        **state_columns(made.state),
        "limits": made.state.limits.to_json(),
        "retry": new.spec.retry.model_dump(),
        "queue": new.spec.queue,
        "priority": request.priority,
        "wake_at": wake_at(made.state, begun["now"], RING_AFTER_S),
        "rings": 1 if made.ready else 0,
        "input": request.input,
        "tags": request.tags,
        "created_by": request.created_by,
        "trace_id": request.trace_of(run_id),
        "prev_run_id": first.follows if source else request.follows or begun["head_run_id"],
        "forked_from": source.id if source else None,
        "forked_step": first.state.step if source else None,
        "snapshot": snapshot and base64.b64encode(snapshot).decode(),
        "overrides": first.overrides,
        "held_for": _held_for(new),
        "concurrency_key": request.concurrency_key,
        "concurrency_max": request.concurrency_max,
        **_parent_columns(request.parent),
        "copy_from": first.copied[0],
        "copy_to": first.copied[1],
        "title": request.title,
        "user_id": request.user_id,
        "slot_delta": int(holds_slot(made.state)),
        "events": [{"type": e.type, "step": e.step, "payload": e.payload} for e in made.events],
        "messages": [_message(first, n, said) for n, said in enumerate(first.messages, 1)],
    }


def _message(first: First, n: int, said: Message) -> dict[str, Json]:
    return {
        "n": first.copied[1] + n,
        "step": first.state.step,
        "role": said.role,
        "trust": said.trust,
        "body": dumps(said),
    }


def _session(begun: Row) -> UUID:
    session_id: UUID = begun["session_id"] or begun["new_session_id"]
    return session_id


def _started(tenant_id: UUID, new: NewRun, made: Transition, *, newcomer: bool) -> Started:
    """Return what whoever asked is told."""
    begun, request, state = new.begun, new.request, made.state
    bell = None
    if made.ready:
        urgent = urgency(request.priority, newcomer=newcomer)
        bell = Doorbell(
            tenant_id, begun["run_id"], state.version, new.spec.queue, urgent,
            trace_id=request.trace_of(begun["run_id"]), step=state.step + 1,
        )  # fmt: skip
    return Started(begun["run_id"], _session(begun), state.status, doorbell=bell)


async def _with_skills(db: Database, conn: Connection, tenant_id: UUID, new: NewRun) -> First:
    """Pin the versions of the run's skills; a fork keeps those of its source."""
    spec, request, first = new.spec, new.request, new.first
    if "skills" in first.overrides or not (spec.skills or request.skills):
        return first
    pins = await pin(conn, tenant_id, spec.skills, request.skills, db.timeout_s)
    return replace(first, overrides={**first.overrides, "skills": pins})


def _about(begun: Row, request: StartRun, first: First) -> dict[str, Json]:
    """Say in the run's first event where it comes from."""
    about: dict[str, Json] = {"agent": f"{begun['agent_name']}@{begun['agent_version']}"}
    if first.source is not None:
        source = encode("run", first.source.id)
        about["forked_from"] = {"run": source, "step": first.state.step}
    if changed := {k: v for k, v in first.overrides.items() if k != REQUEST}:
        about["overrides"] = changed
    if request.parent is not None:
        call = f"{request.parent.step}.{request.parent.index}"
        about["parent"] = {"run": encode("run", request.parent.run_id), "call": call}
    return about


def _parent_columns(parent: Parent | None) -> dict[str, Any]:
    if parent is None:
        return {"parent_run_id": None, "parent_step": None, "parent_idx": None, "depth": 0}
    return {
        "parent_run_id": parent.run_id,
        "parent_step": parent.step,
        "parent_idx": parent.index,
        "depth": parent.depth,
    }
