"""What the API does in one transaction each: `commands.start_run` and `commands.cancel_run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

from harness_common.core import events as ev
from harness_common.core.budget import Limits
from harness_common.core.inputs import Admit, CancelRequested, Input
from harness_common.core.message import dumps, user
from harness_common.core.retry import RetryRule
from harness_common.core.run import TERMINAL, RunState, Transition, wake_at
from harness_common.store.apply import RING_AFTER_S, Applied, Write
from harness_common.store.rows import run_from_row
from tests.sim.store import Store
from tests.sim.tables import Row, first_row
from tests.sim.world import Violation

Advance = Callable[[RunState, Sequence[Input], datetime], Transition]


def start(
    store: Store, advance: Advance, tenant_id: UUID, run_id: UUID, limits: Limits, retry: RetryRule
) -> Row:
    """Accept a run: slots_hold.sql, start_begin.sql, start_insert.sql. The idempotency key of a
    repeated request is the run's id.
    """
    if run_id in store.runs:
        return store.runs[run_id]
    now, slot = store.world.time(), store.slots[tenant_id]
    others_wait = any(
        r["tenant_id"] == tenant_id and r["status"] == "queued" and r["held_for"] is None
        for r in store.runs.values()
    )
    made = Transition(RunState(limits=limits, retry=retry, messages=1))
    if slot["running"] < min(slot["max_running"], slot["granted"]) and not others_wait:
        made = advance(made.state, [Admit()], now)
    events = [ev.RUN_CREATED, *(e.type for e in made.events)]
    row = first_row(tenant_id, run_id, made.state)
    row["wake_at"], row["queued_at"] = wake_at(made.state, now, RING_AFTER_S), now
    row["rings"], row["rung_at"] = int(made.ready), now if made.ready else None
    row["next_seq"] = len(events) + 1
    store.runs[run_id] = row
    store.events[run_id], store.checkpoints[run_id], store.inputs[run_id] = [], {}, []
    store.messages[run_id] = [dumps(user("hi"))]
    for n, type_ in enumerate(events):
        # A run's own events carry no step, but for those of its transitions.
        store.add_event(run_id, n + 1, type_, None)
    if made.ready:
        slot["running"] += 1
        slot["last_admitted_at"] = now
    store.flush()
    store.audit.started(row)
    return row


def cancel(store: Store, advance: Advance, run_id: UUID) -> Applied | None:
    """Ask a run to stop: lock_run.sql, input_insert.sql, commit.sql. None when it was asked
    before, or has ended.
    """
    row = store.read_run(run_id)
    if row is None:
        return None
    run = run_from_row(row)
    if run.state.status in TERMINAL or run.state.cancel_requested:
        return None
    transition = advance(run.state, [CancelRequested("user")], row["now"])
    store.input_insert(run_id, run.last_input_n + 1, "cancel")
    (applied,) = store.apply([Write(run, transition, row["now"], input_delta=1)])
    if applied is None:
        raise Violation("INV9", f"run {run_id} changed while it was locked")
    return applied
