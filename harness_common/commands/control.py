"""What people ask of a run under way: cancel, pause, resume, answer, steer.

Each is an outside input: a row in `inputs` and what the rules make of it, in one transaction under
the run's row lock.

None of them touches `version` while somebody works on the run: its owner sees them at its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from harness_common.contracts.flow import Interrupt
from harness_common.contracts.foreign import KINDS as FOREIGN_KINDS
from harness_common.core.approval_rules import waits_for_approval
from harness_common.core.errors import Conflict, IllegalTransition, Invalid, NotFound
from harness_common.core.ids import encode
from harness_common.core.inputs import (
    ApprovalDecided,
    CancelRequested,
    EffectsResolved,
    Input,
    InputGiven,
    PauseRequested,
    ResumeRequested,
    Steered,
)
from harness_common.core.message import Json
from harness_common.core.rules import advance
from harness_common.core.run import TERMINAL, RunState, Status
from harness_common.store import json_codec
from harness_common.store.apply import apply, lock_run
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, run_sql
from harness_common.store.db import Database
from harness_common.store.writes import Write


@dataclass(frozen=True, slots=True)
class Asked:
    """What an outside input did. `claimed_by` names the process that works on the run, if any."""

    status: Status
    claimed_by: UUID | None = None
    changed: bool = True
    last_seq: int = 0
    """The last event that it wrote."""


@dataclass(frozen=True, slots=True)
class _Ask:
    """One kind of request: how it is recorded, and what it makes of a state."""

    kind: str
    by: str
    body: Mapping[str, Json]
    inputs: Callable[[RunState], Sequence[Input]]
    """Nothing for a state that needs no change: the request is safe to repeat."""


async def cancel_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    by: str,
    reason: str = "",
    actor: Actor | None = None,
) -> Asked:
    """Ask a run to stop: at once when nobody owns it, else at its owner's next safe point. Its
    children are stopped by the scheduler. Safe to repeat.

    Raises `NotFound`. A run that has already ended is left as it is.
    """

    def inputs(state: RunState) -> list[Input]:
        over = state.status in TERMINAL or state.cancel_requested
        return [] if over else [CancelRequested(by, reason)]

    ask = _Ask("cancel", by, {"reason": reason}, inputs)
    return await _ask(db, tenant_id, run_id, ask, actor)


async def pause_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    by: str,
    reason: str = "",
    actor: Actor | None = None,
) -> Asked:
    """Ask a run to rest: at once when nobody works on it, else after the step under way. A run that
    waits for something goes on waiting and rests when that has come. Safe to repeat.

    Raises `NotFound`, and `Conflict` when the run is over.
    """

    def inputs(state: RunState) -> list[Input]:
        _check_live(state, "paused")
        idle = state.pause_requested or state.status is Status.PAUSED
        return [] if idle else [PauseRequested(by, reason)]

    return await _ask(db, tenant_id, run_id, _Ask("pause", by, {"reason": reason}, inputs), actor)


async def resume_run(
    db: Database, tenant_id: UUID, run_id: UUID, *, by: str, actor: Actor | None = None
) -> Asked:
    """Let a paused run go on, or take a pause back before it began. Safe to repeat.

    Raises `NotFound`, and `Conflict` when the run is over.
    """

    def inputs(state: RunState) -> list[Input]:
        _check_live(state, "resumed")
        resting = state.pause_requested or state.status is Status.PAUSED
        return [ResumeRequested(by)] if resting else []

    return await _ask(db, tenant_id, run_id, _Ask("resume", by, {}, inputs), actor)


async def answer_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    text: str,
    call: str | None,
    by: str,
    actor: Actor | None = None,
) -> Asked:
    """Answer a question of the run: that of `call` (`step.index`), or the only open one.

    Raises `NotFound`, `Conflict` when it asks nothing, `Invalid` when the call is unclear or the
    text is none of the choices.
    """

    def inputs(state: RunState) -> list[Input]:
        question = _question(state, call)
        choices = question.get("choices")
        if choices and text not in choices:
            raise Invalid(
                f"{text!r} is none of the choices: {', '.join(choices)}",
                field="text",
                value=text,
                choices=choices,
            )
        return [InputGiven(by, question["index"], text)]

    return await _ask(
        db, tenant_id, run_id, _Ask("answer", by, {"call": call, "chars": len(text)}, inputs), actor
    )


async def answer_calls(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    answers: Mapping[str, str],
    also: str | None = None,
    by: str,
    actor: Actor | None = None,
) -> Asked:
    """Answer several questions of the run in one transaction (`step.index` to the answer), and give
    it the message `also`, which its next model step sees.

    Raises `NotFound`, and `Conflict` (NO_QUESTION) or `Invalid` when one of the calls waits for no
    answer: then none is answered.
    """

    def inputs(state: RunState) -> list[Input]:
        open_ones = {call: _question(state, call)["index"] for call in answers}
        given: list[Input] = [InputGiven(by, open_ones[c], text) for c, text in answers.items()]
        return given if also is None else [*given, _steered(state, by, also)]

    told = {"calls": list(answers), "chars": sum(map(len, answers.values()))}
    return await _ask(db, tenant_id, run_id, _Ask("answer", by, told, inputs), actor)


def _question(state: RunState, call: str | None) -> dict[str, Any]:
    asks = state.status is Status.WAITING_INPUT or waits_for_approval(state)
    calls = state.waiting["calls"] if asks else ()
    open_calls = {c["call"]: c for c in calls if c["kind"] == "input"}
    if not open_calls:
        raise Conflict(
            f"the run asks nothing now; it is {state.status}",
            code="NO_QUESTION",
            status=str(state.status),
        )
    if call is None and len(open_calls) == 1:
        return dict(next(iter(open_calls.values())))
    if call not in open_calls:
        raise Invalid(
            f"say which question is answered: call is one of {', '.join(open_calls)}",
            field="call",
            value=call,
            choices=list(open_calls),
        )
    return dict(open_calls[call])


async def steer_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    *,
    text: str,
    by: str,
    actor: Actor | None = None,
) -> Asked:
    """Give a run under way a message that its next model step sees.

    Raises `NotFound`, and `Conflict` when the run is over or about to stop.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        return await steer_in(db, conn, tenant_id, run_id, text=text, by=by, actor=actor)


async def steer_in(
    db: Database,
    conn: Connection,
    tenant_id: UUID,
    run_id: UUID,
    *,
    text: str,
    by: str,
    actor: Actor | None,
) -> Asked:
    """Do what `steer_run` does within the caller's transaction."""

    def inputs(state: RunState) -> list[Input]:
        _check_live(state, "steered")
        return [_steered(state, by, text)]

    ask = _Ask("message", by, {"chars": len(text)}, inputs)
    return await _ask_in(db, conn, tenant_id, run_id, ask, actor)


def _steered(state: RunState, by: str, text: str) -> Steered:
    """Build a message for a run under way; raises `Conflict` for one that would never see it."""
    if state.cancel_requested:
        raise Conflict("the run is about to stop", code="RUN_STOPPING", status="cancelling")
    if state.next_kind in FOREIGN_KINDS:
        raise Conflict(
            f"a run of kind {state.next_kind} takes no messages while it is under way",
            code="NOT_STEERABLE",
        )
    return Steered(by, text)


async def interrupt_run(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    one: Interrupt,
    *,
    by: str,
    actor: Actor | None = None,
) -> Asked:
    """Cancel, pause or steer a run, but only while the step that is meant is due.

    Raises `NotFound`, and `Conflict` (`OTHER_STEP`) when another step is, or the run is over.
    """
    asked: Mapping[str, Input] = {
        "cancel": CancelRequested(by, one.text),
        "pause": PauseRequested(by, one.text),
    }

    def inputs(state: RunState) -> list[Input]:
        _check_live(state, "interrupted")
        if state.step + 1 != one.step:
            raise Conflict(
                f"step {one.step} is not due; the run is at step {state.step + 1}",
                code="OTHER_STEP",
                field="target_step_id",
                value=one.target_step_id,
                step=state.step + 1,
            )
        if one.interrupt_type == "steer":
            return [_steered(state, by, one.text)]
        done = {
            "cancel": state.cancel_requested,
            "pause": state.pause_requested or state.status is Status.PAUSED,
        }
        return [] if done[one.interrupt_type] else [asked[one.interrupt_type]]

    kind = {"steer": "message"}.get(one.interrupt_type, one.interrupt_type)
    body = {"chars": len(one.text)} if kind == "message" else {"reason": one.text}
    ask = _Ask(kind, by, body | {"target_step": one.step}, inputs)
    return await _ask(db, tenant_id, run_id, ask, actor)


async def effects_resolved_in(
    db: Database, conn: Connection, tenant_id: UUID, run_id: UUID, *, by: str
) -> Asked:
    """Let a run go on whose unknown effects a person has resolved, within the caller's transaction.
    One that does not wait for them is left as it is.
    """

    def inputs(state: RunState) -> list[Input]:
        waits = state.status is Status.WAITING_APPROVAL
        return [EffectsResolved(by)] if waits else []

    return await _ask_in(db, conn, tenant_id, run_id, _Ask("effects", by, {}, inputs), None)


async def approval_decided_in(
    db: Database, conn: Connection, tenant_id: UUID, run_id: UUID, one: ApprovalDecided
) -> Asked:
    """Let a run know what a person decided about one of its calls, within the caller's
    transaction.
    """
    body = {"approval": one.approval, "verdict": one.verdict}
    ask = _Ask("approval", one.by, body, lambda _: [one])
    return await _ask_in(db, conn, tenant_id, run_id, ask, None)


def _check_live(state: RunState, what: str) -> None:
    if state.status in TERMINAL:
        raise Conflict(
            f"the run is over ({state.status}) and cannot be {what}",
            code="RUN_OVER",
            status=str(state.status),
        )


async def _ask(
    db: Database, tenant_id: UUID, run_id: UUID, ask: _Ask, actor: Actor | None
) -> Asked:
    async with db.tenant_transaction(tenant_id) as conn:
        return await _ask_in(db, conn, tenant_id, run_id, ask, actor)


async def _ask_in(
    db: Database, conn: Connection, tenant_id: UUID, run_id: UUID, ask: _Ask, actor: Actor | None
) -> Asked:
    held = await lock_run(conn, tenant_id, run_id, db.timeout_s)
    if held is None:
        raise NotFound(f"no run {encode('run', run_id)}", run_id=encode("run", run_id))
    run, now = held
    inputs = ask.inputs(run.state)
    if not inputs:
        return Asked(run.state.status, run.claimed_by, changed=False)
    try:
        transition = advance(run.state, inputs, now)
    except IllegalTransition as error:
        raise Conflict(error.message, status=str(run.state.status)) from error
    body = json_codec.dumps_text(dict(ask.body))
    row = {
        "tenant_id": tenant_id, "run_id": run_id, "n": run.last_input_n + 1, "kind": ask.kind,
        "body": body, "created_by": ask.by,
    }  # fmt: skip
    await run_sql(conn, "input_insert", row, db.timeout_s)
    write = Write(run, transition, now, input_delta=1)
    (applied,) = await apply(conn, [write], timeout_s=db.timeout_s)
    if applied is None:
        raise Conflict("the run changed while it was locked", run_id=encode("run", run_id))
    if actor is not None:
        entry = Entry(f"run.{ask.kind}", encode("run", run_id), dict(ask.body))
        record(conn, tenant_id, actor, entry)
    last_seq = applied.first_seq + len(transition.events) - 1
    return Asked(applied.run.state.status, applied.run.claimed_by, last_seq=last_seq)
