"""The run as stored, read into the pure state, and the values that every commit compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any
from uuid import UUID

from harness_common.core.budget import Limits
from harness_common.core.handoff import Acting, acting
from harness_common.core.lease import Ownership, quarantine_of
from harness_common.core.message import Json
from harness_common.core.retry import RetryRule
from harness_common.core.rules import is_suspect
from harness_common.core.run import RunState, Status


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One row of `runs`: its state, and what surrounds it."""

    tenant_id: UUID
    id: UUID
    session_id: UUID
    agent_id: UUID
    agent_name: str
    agent_version: int
    queue: str
    priority: int
    trace_id: str
    prev_run_id: UUID | None
    attempt: int
    fence: int
    claim_id: UUID | None
    claimed_by: UUID | None
    committed_by: UUID | None
    last_input_n: int
    rings: int
    state: RunState
    concurrency_key: str | None = None
    overrides: Mapping[str, Json] = field(default_factory=dict)
    """What a fork changed of its agent: `model`, `tools`, `recorded` (see `contracts.agent`)."""
    parent_run_id: UUID | None = None
    depth: int = 0
    """How many runs are above this one."""
    reserved_tokens: int = 0
    reserved_usd: float = 0.0
    reserved_day: date | None = None
    """Set by an owner whose tenant has a daily limit: the day that its spending counts for."""

    @property
    def version(self) -> int:
        """The version that the next doorbell carries."""
        return self.state.version

    @property
    def bell_queue(self) -> str:
        """Where to ring: a suspect runs alone, in the quarantine of its queue."""
        return quarantine_of(self.queue) if is_suspect(self.state) else self.queue

    @property
    def acting(self) -> Acting:
        """Return the agent under whose version the next step runs: another one after a hand-off."""
        return acting(self.state.memo, self.agent_name, self.agent_version)

    def owned_by(self, ownership: Ownership) -> bool:
        """Tell whether `ownership` still holds this run."""
        return self.claim_id == ownership.claim_id and self.fence == ownership.fence


def run_from_row(row: dict[str, Any]) -> StoredRun:
    """Read a row of `runs` (the statements name the columns: `SELECT *` would break their prepared
    plans at the next migration); a claim leaves out what only an ended run has. Raises
    `ValueError` for a row that could not be decrypted.
    """
    if "broken" in row:
        raise ValueError(str(row["broken"]))
    state = RunState(
        status=Status(row["status"]),
        version=row["version"],
        step=row["step"],
        next_kind=row["next_kind"],
        turn=row["turn"],
        failures=row["failures"],
        limited=row["limited"],
        deaths=row["deaths"],
        claimed=row["claim_id"] is not None,
        not_before=row["not_before"],
        cancel_requested=row["cancel_requested"],
        pause_requested=row["pause_requested"],
        waiting=row["waiting"],
        turn_at=row["turn_at"],
        started=row["started"],
        messages=row["messages"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cost_usd=row["cost_usd"],
        stop_reason=row.get("stop_reason"),
        error=row.get("error"),
        output=row.get("output"),
        limits=Limits.from_json(row["limits"]),
        retry=RetryRule(**row["retry"]),
        memo=row["memo"],
    )
    return StoredRun(
        tenant_id=row["tenant_id"],
        id=row["id"],
        session_id=row["session_id"],
        agent_id=row["agent_id"],
        agent_name=row["agent_name"],
        agent_version=row["agent_version"],
        queue=row["queue"],
        priority=row["priority"],
        trace_id=row["trace_id"],
        prev_run_id=row["prev_run_id"],
        attempt=row["attempt"],
        fence=row["fence"],
        claim_id=row["claim_id"],
        claimed_by=row["claimed_by"],
        committed_by=row["committed_by"],
        last_input_n=row["last_input_n"],
        rings=row["rings"],
        state=state,
        concurrency_key=row["concurrency_key"],
        overrides=row["overrides"],
        parent_run_id=row["parent_run_id"],
        depth=row["depth"],
        reserved_tokens=row["reserved_tokens"],
        reserved_usd=row["reserved_usd"],
        reserved_day=row["reserved_day"],
    )


def row_time(row: dict[str, Any]) -> datetime:
    """Return the Postgres time that came with a row."""
    now: datetime = row["now"]
    return now
