"""How a row of `runs` is shown."""

from __future__ import annotations

from typing import Any

from harness_api.schemas.runs import (
    AgentRef,
    ForkedFrom,
    ParentRef,
    RunLimits,
    RunLinks,
    RunView,
    Usage,
)
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.core.phase import phase, shown_status, turn_state
from harness_common.core.rules import is_suspect
from harness_common.core.run import TERMINAL
from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.rows import run_from_row


def run_view(row: Row, waiting: dict[str, Any] | None = None) -> RunView:
    """Show a run; `row` has its worker's name and `scripted` beside the columns of `runs`.

    `waiting` says why a queued run is not admitted; it is told of single runs only.
    """
    run = run_from_row(row)
    state, limits = run.state, run.state.limits
    run_id, session_id = encode("run", run.id), encode("session", run.session_id)
    source = row["forked_from"]
    worker = row["worker_name"] or (run.claimed_by and encode("worker", run.claimed_by))
    return RunView(
        id=run_id,
        session_id=session_id,
        agent=AgentRef(name=run.agent_name, version=run.agent_version),
        acting=AgentRef(name=run.acting.name, version=run.acting.version),
        handoffs=run.acting.hops,
        status=shown_status(state),
        phase=phase(state),
        turn_state=turn_state(state),
        step=state.step,
        turn=state.turn,
        next_kind=state.next_kind,
        attempt=run.attempt,
        failures=state.failures,
        input=row["input"],
        output=state.output,
        output_json=_parsed(row, state.output),
        stop_reason=state.stop_reason,
        error=state.error,
        usage=Usage(
            input_tokens=state.input_tokens,
            output_tokens=state.output_tokens,
            cost_usd=state.cost_usd,
        ),
        limits=RunLimits(
            max_turns=limits.max_turns,
            max_tokens=limits.max_tokens,
            max_cost_usd=limits.max_cost_usd,
            deadline=limits.deadline,
        ),
        tags=row["tags"],
        priority=run.priority,
        queue=run.queue,
        created_by=row["created_by"],
        created_at=row["created_at"],
        queued_at=row["queued_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        not_before=state.not_before,
        cancel_requested=state.cancel_requested,
        pause_requested=state.pause_requested,
        waiting=None if state.status in TERMINAL else waiting or state.waiting,
        held_for=row["held_for"],
        concurrency_key=run.concurrency_key,
        parent=parent_ref(row),
        depth=run.depth,
        overrides={k: v for k, v in run.overrides.items() if k != "recorded"},
        dry_run="recorded" in run.overrides,
        deaths=state.deaths,
        suspect=is_suspect(state),
        forked_from=ForkedFrom(run_id=encode("run", source), step=row["forked_step"])
        if source
        else None,
        worker=worker,
        trace_id=run.trace_id,
        scripted=row["scripted"],
        links=RunLinks(
            self=f"/v1/runs/{run_id}",
            events=f"/v1/runs/{run_id}/events",
            steps=f"/v1/runs/{run_id}/steps",
            session=f"/v1/sessions/{session_id}",
            lineage=f"/v1/runs/{run_id}/lineage",
        ),
    )


def _parsed(row: Row, output: str | None) -> Json:
    """Parse an output that has a schema: it is in canonical form."""
    return json_codec.loads(output) if row["structured"] and output is not None else None


def parent_ref(row: Row) -> ParentRef | None:
    """Show the call that a child run works for."""
    if row["parent_run_id"] is None:
        return None
    return ParentRef(
        run_id=encode("run", row["parent_run_id"]),
        call=f"{row['parent_step']}.{row['parent_idx']}",
    )
