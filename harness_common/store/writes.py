"""What the one writer writes: a transition over a run as it was seen, and all that a commit
compares and sets. Pure, so that the simulator's store is given what Postgres is given.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import zstandard

from harness_common.core.approval import EXPIRED
from harness_common.core.graph import MODEL_CALL
from harness_common.core.message import Json, Message, dumps
from harness_common.core.run import (
    TERMINAL,
    RunState,
    Transition,
    content,
    delta,
    holds_slot,
    wake_at,
)
from harness_common.core.step import WITHOUT_CALLS, CallOutcome
from harness_common.core.values import replace
from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.rows import StoredRun

RING_AFTER_S: Final = 5.0
"""How long a fresh doorbell may go unanswered before the scheduler rings again."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What an owner adds to its commit for the checkpoint."""

    started_at: datetime
    worker: UUID


@dataclass(frozen=True, slots=True)
class NextClaim:
    """Ask the commit to keep the run for one more step: a new claim id under a new fence."""

    claim_id: UUID
    worker: UUID
    hold_s: float


@dataclass(frozen=True, slots=True)
class Write:
    """A transition over a run as it was seen."""

    run: StoredRun
    transition: Transition
    now: datetime
    step: StepRecord | None = None
    """Set by an owner that commits a step's result."""
    keep: NextClaim | None = None
    input_delta: int = 0
    """Outside inputs that the same transaction has written."""
    snapshot_every: int = 20


@dataclass(frozen=True, slots=True)
class Applied:
    """The run as it is after the commit."""

    run: StoredRun
    transition: Transition
    first_seq: int
    now: datetime

    @property
    def should_ring(self) -> bool:
        """Tell whether this commit made the run ready for somebody to claim."""
        return self.transition.ready and self.run.claim_id is None


def _checkpoint(before: RunState, after: RunState, run: StoredRun, step: StepRecord | None) -> Json:
    if after.step == before.step:
        return None
    return {
        "kind": before.next_kind,
        "delta": delta(before, after),
        "attempt": run.attempt,
        "started_at": step.started_at if step else None,
    }


def encode_snapshot(state: RunState) -> bytes:
    """Write the whole content of a state, compressed; `store.reads` reads it."""
    return zstandard.compress(json_codec.dumps(content(state)))


def _snapshot(before: RunState, after: RunState, every: int) -> str | None:
    if after.step == before.step or after.step % every:
        return None
    return base64.b64encode(encode_snapshot(after)).decode()


def _messages(first_n: int, messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [
        {"n": first_n + i, "role": m.role, "trust": m.trust, "body": dumps(m)}
        for i, m in enumerate(messages)
    ]


def _proposals(step: int, message: Message) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "idx": i,
            "tool_use_id": use.id,
            "name": use.name,
            # Arguments that were no JSON object are kept as the text they were; validation says so
            # to the model.
            "arguments": json_codec.dumps_text(use.raw or use.input),
        }
        for i, use in enumerate(message.tool_uses())
    ]


def outcome_rows(step: int, outcomes: Sequence[CallOutcome]) -> list[dict[str, Any]]:
    """Write how calls ended as `commit.sql` and `call_keep.sql` read it; what the ledger has
    already is left out.
    """
    return [
        {
            "step": step,
            "idx": o.index,
            "status": o.status,
            "result": o.content,
            "error_type": o.error_type,
            "trust": o.trust,
            "artifacts": o.artifacts,
            "duration_ms": o.duration_ms,
            "cost_usd": o.cost_usd,
            "attempt": o.attempt,
            "effect": o.effect,
            "tool_version": o.tool_version,
            "resume_at": o.resume_at,
            "input_tokens": o.input_tokens,
            "output_tokens": o.output_tokens,
            "fingerprint": o.fingerprint,
            "ran_arguments": None
            if o.ran_arguments is None
            else json_codec.dumps_text(o.ran_arguments),
            "failed_attempts": o.failed_attempts or None,
            "duplicate_of": o.duplicate_of,
            "cached_from": o.cached_from,
            "cached_until": o.cached_until,
            "served_by": o.served_by,
            "policy": o.policy,
            "answer": o.answer,
        }
        for o in outcomes
        if not o.recorded
    ]


def _asked(outcomes: Sequence[CallOutcome]) -> list[Json]:
    """Return the approvals that are asked for with this commit."""
    return [o.wait.record for o in outcomes if o.wait is not None and o.wait.record is not None]


def state_columns(state: RunState) -> dict[str, Any]:
    """Write a state as the columns of `runs` that hold it, for `commit.sql` and
    `start_insert.sql`; `rows.run_from_row` reads them.
    """
    return {
        "status": state.status,
        "version": state.version,
        "step": state.step,
        "next_kind": state.next_kind,
        "turn": state.turn,
        "failures": state.failures,
        "limited": state.limited,
        "deaths": state.deaths,
        "message_count": state.messages,
        "memo": state.memo,
        "started": state.started,
        "cancel_requested": state.cancel_requested,
        "not_before": state.not_before,
        "stop_reason": state.stop_reason,
        "error": state.error,
        "output": state.output,
        "input_tokens": state.input_tokens,
        "output_tokens": state.output_tokens,
        "cost_usd": state.cost_usd,
        "pause_requested": state.pause_requested,
        "waiting": state.waiting,
        "turn_at": state.turn_at,
    }


def _tokens(state: RunState) -> int:
    return state.input_tokens + state.output_tokens


def _joined(write: Write) -> tuple[int, float]:
    """Return the tokens and money of child runs that a step adds to its run: the children's own
    commits have charged them to the day. Only a child's call has tokens, and a model node's, which
    are the run's own.
    """
    before, after = write.run.state, write.transition.state
    if after.step == before.step or before.next_kind in WITHOUT_CALLS:
        return 0, 0.0
    others = (o for o in write.transition.outcomes if o.name != MODEL_CALL)
    calls = [o for o in others if o.input_tokens or o.output_tokens]
    tokens = sum(o.input_tokens + o.output_tokens for o in calls)
    return tokens, sum(o.cost_usd for o in calls)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A write with everything derived from it; `body` is what `sql/commit.sql` reads as `t`."""

    write: Write
    claim_id: UUID | None
    new_claim: bool
    attempt: int
    rings: int
    body: dict[str, Any]


def prepare(write: Write) -> Prepared:
    """Derive all that a write's commit compares and sets. Pure, so that the simulator's store is
    given what Postgres is given.
    """
    run, step, keep = write.run, write.step, write.keep
    before, after = run.state, write.transition.state
    if not write.transition.ready:
        keep = None
    same_step = after.step == before.step and after.status == before.status
    attempt = (run.attempt if same_step else 0) + (keep is not None)
    rings = 1 if write.transition.ready and keep is None else 0
    # A commit clears the claim, except a cancel request over a running step, and one that goes on
    # inline.
    claim_id = keep.claim_id if keep else (run.claim_id if after.claimed else None)
    # What the step under way has reserved stays with its claim.
    goes_on = claim_id is not None and keep is None
    events = write.transition.events
    joined_tokens, joined_usd = _joined(write)
    body = {
        "tenant_id": run.tenant_id,
        "run_id": run.id,
        "seen_version": before.version,
        "seen_fence": run.fence,
        "seen_claim_id": run.claim_id,
        "seen_input_n": run.last_input_n,
        "seen_cancel": before.cancel_requested,
        **state_columns(after),
        "seen_turn_at": before.turn_at,
        "spent_tokens": _tokens(after) - _tokens(before) - joined_tokens,
        "spent_usd": after.cost_usd - before.cost_usd - joined_usd,
        "freed_tokens": run.reserved_tokens,
        "freed_usd": run.reserved_usd,
        "day": None if goes_on else run.reserved_day,
        "next_claim_id": claim_id,
        "new_claim": keep is not None,
        "committed_by": run.claim_id if step else None,
        "worker": keep.worker if keep else (step.worker if step else run.claimed_by),
        "attempt": attempt,
        "wake_at": wake_at(after, write.now, keep.hold_s if keep else RING_AFTER_S),
        "rings": rings,
        # A message or a wish over a run that stays as it is: whoever was to look still is.
        "untouched": same_step and write.input_delta > 0 and claim_id == run.claim_id,
        "terminal": after.status in TERMINAL,
        "slot_delta": holds_slot(after) - holds_slot(before),
        "input_delta": write.input_delta,
        "event_count": len(events),
        "checkpoint": _checkpoint(before, after, run, step),
        "snapshot": _snapshot(before, after, write.snapshot_every),
        "events": [
            {"type": e.type, "step": e.step, "payload": e.payload, "at": e.at} for e in events
        ],
        "messages": _messages(before.messages + 1, write.transition.messages),
        "proposed": _proposals(after.step + 1, write.transition.proposal)
        if write.transition.proposed
        else [],
        "outcomes": outcome_rows(before.step + 1, write.transition.outcomes),
        "asked": _asked(write.transition.outcomes),
        "session_summary": write.transition.session_summary,
        "expired": after.step == before.step
        and after.status not in TERMINAL
        and any(o.error_type == EXPIRED for o in write.transition.outcomes),
    }
    return Prepared(write, claim_id, keep is not None, attempt, rings, body)


def finish(prepared: Prepared, row: Row) -> Applied:
    """Build the run as it is after its commit from what the statement returned."""
    write, after = prepared.write, prepared.write.transition.state
    worker = write.keep.worker if prepared.new_claim and write.keep else write.run.claimed_by
    goes_on = prepared.claim_id is not None and not prepared.new_claim
    run = replace(
        write.run,
        state=replace(after, claimed=prepared.claim_id is not None),
        fence=row["fence"],
        claim_id=prepared.claim_id,
        claimed_by=worker if prepared.claim_id else None,
        last_input_n=row["last_input_n"],
        attempt=prepared.attempt,
        rings=prepared.rings,
        reserved_tokens=write.run.reserved_tokens if goes_on else 0,
        reserved_usd=write.run.reserved_usd if goes_on else 0.0,
        reserved_day=write.run.reserved_day if goes_on else None,
    )
    return Applied(run, write.transition, row["first_seq"], row["now"])
