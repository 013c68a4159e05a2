"""Writing a new run in its first state: fresh with its input, or as a copy of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
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
from harness_common.store.keyring import seal_commits, writing_key
from harness_common.store.rows import StoredRun
from harness_common.store.sealed import seal_bytes
from harness_common.store.skill_pins import pin
from harness_common.store.writes import RING_AFTER_S, encode_snapshot, state_columns
from harness_common.telemetry.causes import note_made


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
    first = await _with_skills(db, conn, tenant_id, spec, request, first)
    session_id = begun["session_id"] or begun["new_session_id"]
    held_for = first.held_for or ("key" if request.concurrency_key is not None else None)
    made = Transition(state, (Event(ev.RUN_CREATED, _about(begun, request, first)),))
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
        **state_columns(made.state),
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
        "prev_run_id": first.follows if source else request.follows or begun["head_run_id"],
        "forked_from": source.id if source else None,
        "forked_step": state.step if source else None,
        "overrides": first.overrides,
        "held_for": held_for,
        "concurrency_key": request.concurrency_key,
        "concurrency_max": request.concurrency_max,
        **_parent_columns(request.parent),
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
    (stored,) = await seal_commits(conn, [body], db.timeout_s)
    key = await writing_key(conn, tenant_id, db.timeout_s)
    snapshot = encode_snapshot(made.state) if source is not None else None
    params = {
        "t": json_codec.dumps_text(stored),
        "snapshot": seal_bytes(key, snapshot, "snapshot"),
    }
    conn.run_later("start_insert", params)  # with COMMIT, so that the slots are held no longer
    note_made(run_id, body["trace_id"], *((source.id, source.trace_id) if source else ()))
    bell = None
    if made.ready:
        urgent = urgency(request.priority, newcomer=begun["running"] == 0)
        bell = Doorbell(
            tenant_id, run_id, made.state.version, spec.queue, urgent,
            trace_id=body["trace_id"], step=made.state.step + 1,
        )  # fmt: skip
    return Started(run_id, session_id, made.state.status, doorbell=bell)


async def _with_skills(
    db: Database,
    conn: Connection,
    tenant_id: UUID,
    spec: AgentSpec,
    request: StartRun,
    first: First,
) -> First:
    """Pin the versions of the run's skills; a fork keeps those of its source."""
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
