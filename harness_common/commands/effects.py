"""What a person decides about an effect that nobody knows the outcome of."""

from __future__ import annotations

from uuid import UUID

from harness_common.commands.control import Asked, effects_resolved_in
from harness_common.core.errors import Conflict, NotFound
from harness_common.core.ids import encode
from harness_common.core.run import TERMINAL, Status
from harness_common.store.apply import lock_run
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.db import Database
from harness_common.store.effects import CallKey, Resolution, resolve_in
from harness_common.store.rows import StoredRun


async def resolve_effect(
    db: Database, tenant_id: UUID, key: CallKey, said: Resolution, *, actor: Actor
) -> Asked:
    """Record what became of an unknown effect, and let its run go on when it was the last one that
    it waits for. A run that is over stays as it is.

    The run's row is held first, so that its owner's commit and this come one after the other.
    Raises `NotFound`; `Conflict` when somebody was first, and while the step is being worked on.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        held = await lock_run(conn, tenant_id, key.run_id, db.timeout_s)
        if held is None:
            shown = encode("run", key.run_id)
            raise NotFound(f"no run {shown}", field="run_id", value=shown)
        run, _ = held
        _check_possible(run, key, said)
        left = await resolve_in(conn, tenant_id, key, said, db.timeout_s)
        detail = {"outcome": said.outcome, "reason": said.reason}
        entry = Entry("effect.resolve", key.shown, detail)
        record(conn, tenant_id, actor, entry)
        if left or not _waits_for(run, key):
            return Asked(run.state.status, run.claimed_by, changed=False)
        return await effects_resolved_in(db, conn, tenant_id, key.run_id, by=said.by)


def _waits_for(run: StoredRun, key: CallKey) -> bool:
    state = run.state
    return (
        state.status is Status.WAITING_APPROVAL
        and (state.waiting or {}).get("for") == "unknown_effect"
        and key.step == state.step + 1
    )


def _check_possible(run: StoredRun, key: CallKey, said: Resolution) -> None:
    """Refuse while an owner is at the step, which has read the ledger and would wait for a decision
    that was made already; and to run a call again for a run that nobody works on any more.
    """
    if said.outcome == "run_again" and run.state.status in TERMINAL:
        raise Conflict(
            f"the run is over ({run.state.status}), nothing would run the call; say succeeded or "
            "failed, or retry the run and decide there",
            code="RUN_OVER",
            field="outcome",
            value=said.outcome,
            status=str(run.state.status),
        )
    if run.state.claimed and key.step == run.state.step + 1:
        raise Conflict(
            f"a worker is still at step {key.step}; try again when the run waits",
            code="RUN_WORKING",
            field="call",
            value=key.call,
            status=str(run.state.status),
        )
