"""Taking ownership of a run, and reading what its next step needs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from harness_common.core.context import closed_history
from harness_common.core.message import Message, loads
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun, row_time, run_from_row


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this process owns now, and Postgres time at the claim."""

    run: StoredRun
    now: datetime
    rung_at: datetime | None


async def claim(
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
    version: int,
    *,
    claim_id: UUID,
    worker: UUID,
    hold_s: float,
) -> Claimed | None:
    """Claim the run if it is ready at exactly `version`; None when somebody else has it or it moved on.

    `hold_s` is after how long the scheduler looks again. Commits asynchronously: a claim that a Postgres crash forgets is
    safe, since the next one draws another claim id.
    """
    row = await db.fetch_one(
        "claim",
        {
            "tenant_id": tenant_id,
            "run_id": run_id,
            "version": version,
            "claim_id": claim_id,
            "worker": worker,
            "hold_s": hold_s,
        },
    )
    return Claimed(run_from_row(row), row_time(row), row["rung_at"]) if row else None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Messages after those already known, and the ledger rows of the coming step."""

    messages: tuple[Message, ...]
    calls: tuple[dict[str, Any], ...]


async def load(db: Database, run: StoredRun, *, have: int, ledger: bool) -> Loaded:
    """Read a run's messages `have + 1 …` and, when `ledger`, its tool calls of the coming step."""
    row = await db.fetch_one(
        "load",
        {
            "tenant_id": run.tenant_id,
            "run_id": run.id,
            "have": have,
            "messages": run.state.messages,
            "ledger": ledger,
            "step": run.state.step + 1,
        },
    )
    assert row is not None
    return Loaded(
        tuple(loads(text) for text in row["messages"] or ()), tuple(row["calls"] or ())
    )


async def load_history(db: Database, run: StoredRun) -> tuple[Message, ...]:
    """Read the messages of the session's earlier runs, with every unanswered tool use answered as cancelled."""
    if run.prev_run_id is None:
        return ()
    rows = await db.fetch(
        "history", {"tenant_id": run.tenant_id, "prev_run_id": run.prev_run_id}
    )
    return closed_history(tuple(loads(row["body"]) for row in rows))
