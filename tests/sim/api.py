"""What the API does in one transaction each: `commands.start_run` and the requests of
`commands.control` and `commands.effects`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal
from uuid import UUID

from harness_common.core import events as ev
from harness_common.core.approval_rules import waits_for_approval
from harness_common.core.budget import Limits
from harness_common.core.errors import IllegalTransition
from harness_common.core.hints import assigned
from harness_common.core.inputs import (
    Admit,
    ApprovalDecided,
    CancelRequested,
    EffectsResolved,
    Input,
    InputGiven,
    PauseRequested,
    ResumeRequested,
    Steered,
)
from harness_common.core.message import dumps, user
from harness_common.core.retry import RetryRule
from harness_common.core.run import TERMINAL, RunState, Status, Transition, wake_at
from harness_common.store.rows import run_from_row
from harness_common.store.writes import RING_AFTER_S, Applied, Write
from tests.sim.approvals import Verdict
from tests.sim.store import Store
from tests.sim.tables import Row, first_row
from tests.sim.world import Violation

Advance = Callable[[RunState, Sequence[Input], datetime], Transition]
_HI = dumps(user("hi"))
_TASK = dumps(assigned(user("hi")))
"""What a parent asks of a child."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The call whose child a run is."""

    run_id: UUID
    step: int
    index: int
    depth: int = 1


@dataclass(frozen=True, slots=True)
class Start:
    """As `commands.StartRun`, as far as the simulator goes."""

    limits: Limits = field(default_factory=Limits)
    retry: RetryRule = field(default_factory=RetryRule)
    behind: UUID | None = None
    """The session's newest run."""
    key: str | None = None
    key_max: int = 1
    parent: Parent | None = None


def start(store: Store, advance: Advance, tenant_id: UUID, run_id: UUID, asked: Start) -> Row:
    """Accept a run: slots_hold.sql, start_begin.sql, start_insert.sql. The idempotency key of a
    repeated request is the run's id.
    """
    if run_id in store.runs:
        return store.runs[run_id]
    now, slot = store.world.time(), store.slots[tenant_id]
    held_for = "key" if asked.key is not None else None
    if any(r["finished_at"] is None for r in store.line(asked.behind)):
        held_for = "session"
    made = Transition(RunState(limits=asked.limits, retry=asked.retry, messages=1))
    if (
        held_for is None
        and slot["running"] < _may_run(store, slot)
        and not _others_wait(store, slot)
    ):
        made = advance(made.state, [Admit()], now)
    events = [ev.RUN_CREATED, *(e.type for e in made.events)]
    row = first_row(tenant_id, run_id, made.state)
    row["wake_at"], row["queued_at"] = wake_at(made.state, now, RING_AFTER_S), now
    row["rings"], row["rung_at"] = int(made.ready), now if made.ready else None
    row["next_seq"] = len(events) + 1
    row["held_for"], row["concurrency_key"] = held_for, asked.key
    row["concurrency_max"], row["prev_run_id"] = asked.key_max, asked.behind
    if asked.parent is not None:
        parent = asked.parent
        row["parent_run_id"], row["parent_step"] = parent.run_id, parent.step
        row["parent_idx"], row["depth"] = parent.index, parent.depth
    store.runs[run_id] = row
    store.events[run_id], store.checkpoints[run_id], store.inputs[run_id] = [], {}, []
    store.messages[run_id] = [_HI if asked.parent is None else _TASK]
    for n, type_ in enumerate(events):
        # A run's own events carry no step, but for those of its transitions.
        store.add_event(run_id, n + 1, type_, None)
    if made.ready:
        slot["running"] += 1
        slot["last_admitted_at"] = now
        slot["turn_sum"] += now.timestamp()
    store.flush()
    store.audit.started(row)
    return row


def _may_run(store: Store, slot: Row) -> int:
    """How many may run at once by start_begin.sql: none when starts are counted, or when no worker
    serves the queue while others work.
    """
    alive = [w for w in store.workers.values() if w["died_at"] is None and w["stopping_at"] is None]
    served = not alive or any("steps.default" in w["queues"] for w in alive)
    if slot["starts_per_s"] is not None or not served:
        return 0
    return int(min(slot["max_running"], slot["granted"]))


def _others_wait(store: Store, slot: Row) -> bool:
    return any(
        r["tenant_id"] == slot["tenant_id"] and r["status"] == "queued" and r["held_for"] is None
        for r in store.runs.values()
    )


# commands.control: lock_run.sql, input_insert.sql, commit.sql


def ask(
    store: Store,
    advance: Advance,
    run_id: UUID,
    kind: str,
    inputs: Callable[[RunState], Sequence[Input]],
) -> Applied | None:
    """Put an outside input to a run; None when there is nothing to do, or it is refused."""
    row = store.read_run(run_id)
    if row is None:
        return None
    run = run_from_row(row)
    wanted = inputs(run.state)
    if not wanted:
        return None
    try:
        transition = advance(run.state, wanted, row["now"])
    except IllegalTransition:
        return None
    store.input_insert(run_id, run.last_input_n + 1, kind)
    store.audit.asked(run_id, wanted[0])
    (applied,) = store.apply([Write(run, transition, row["now"], input_delta=1)])
    if applied is None:
        raise Violation("INV9", f"run {run_id} changed while it was locked")
    return applied


def cancel(store: Store, advance: Advance, run_id: UUID) -> Applied | None:
    """Ask a run to stop."""

    def inputs(state: RunState) -> list[Input]:
        over = state.status in TERMINAL or state.cancel_requested
        return [] if over else [CancelRequested("user")]

    return ask(store, advance, run_id, "cancel", inputs)


def pause(store: Store, advance: Advance, run_id: UUID) -> Applied | None:
    """Ask a run to rest at its next safe point."""

    def inputs(state: RunState) -> list[Input]:
        idle = state.pause_requested or state.status is Status.PAUSED
        return [] if idle or state.status in TERMINAL else [PauseRequested("user")]

    return ask(store, advance, run_id, "pause", inputs)


def resume(store: Store, advance: Advance, run_id: UUID) -> Applied | None:
    """Let a paused run go on, or take a pause back before it began."""

    def inputs(state: RunState) -> list[Input]:
        resting = state.pause_requested or state.status is Status.PAUSED
        return [ResumeRequested("user")] if resting else []

    return ask(store, advance, run_id, "resume", inputs)


def steer(store: Store, advance: Advance, run_id: UUID, text: str) -> Applied | None:
    """Give a run under way a message."""

    def inputs(state: RunState) -> list[Input]:
        refused = state.status in TERMINAL or state.cancel_requested
        return [] if refused else [Steered("user", text)]

    return ask(store, advance, run_id, "message", inputs)


def answer(store: Store, advance: Advance, run_id: UUID, text: str) -> Applied | None:
    """Answer the first open question of a run."""

    def inputs(state: RunState) -> list[Input]:
        if state.status is not Status.WAITING_INPUT and not waits_for_approval(state):
            return []
        open_calls = [c for c in state.waiting["calls"] if c["kind"] == "input"]
        if not open_calls:
            return []
        return [InputGiven("user", open_calls[0]["index"], text)]

    return ask(store, advance, run_id, "answer", inputs)


def decide(store: Store, advance: Advance, run_id: UUID, verdict: Verdict, nth: int) -> bool:
    """Decide about one pending approval of a run: `commands.approvals.decide_approval`."""
    row = store.runs.get(run_id)
    pending = [a for a in store.approvals.get(run_id, ()) if a["status"] == "pending"]
    if row is None or not pending:
        return False
    one = pending[nth % len(pending)]
    state = run_from_row(row).state
    if state.cancel_requested or state.status in TERMINAL:
        return False
    if not store.approval_decide(run_id, one["id"], verdict):
        return False
    said = ApprovalDecided("user", one["id"].hex, one["idx"], "write_ask", verdict)
    if ask(store, advance, run_id, "approval", lambda _: [said]) is None:
        raise Violation("INV19", f"run {run_id} does not take a decision that was written")
    return True


Outcome = Literal["succeeded", "failed", "proposed"]


def resolve(store: Store, advance: Advance, run_id: UUID, outcome: Outcome) -> bool:
    """Say what became of the first unknown effect of a run: `commands.effects.resolve_effect`.
    `proposed` runs it again.
    """
    row = store.runs.get(run_id)
    if row is None:
        return False
    for (owner, step), calls in store.calls.items():
        for call in calls if owner == run_id else ():
            if call["status"] == "unknown":
                return _resolve(store, advance, row, step, call["idx"], outcome)
    return False


def _resolve(
    store: Store, advance: Advance, row: Row, step: int, idx: int, outcome: Outcome
) -> bool:
    state = run_from_row(row).state
    coming = step == state.step + 1
    if (outcome == "proposed" and state.status in TERMINAL) or (state.claimed and coming):
        return False
    left = store.effect_resolve(row["id"], step, idx, outcome, "a person checked")
    waits = state.status is Status.WAITING_APPROVAL and coming
    if left == 0 and waits and state.waiting.get("for") == "unknown_effect":
        ask(store, advance, row["id"], "effects", lambda _: [EffectsResolved("user")])
    return True
