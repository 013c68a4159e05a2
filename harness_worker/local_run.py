"""A run of a `LocalHarness` as it was when it was read: what the API would show, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from harness_common.core.approval import ApprovalStatus
from harness_common.core.ids import decode, encode
from harness_common.core.message import Json
from harness_common.store import run_reads
from harness_common.store.approvals import list_approvals
from harness_common.store.connection import Row
from harness_common.store.db import Database

_PAGE: Final = 500


@dataclass(frozen=True, slots=True)
class LocalRun:
    """A run as it was when it was read; `LocalHarness.look` reads it again."""

    id: str
    session: str
    agent: str
    status: str
    output: str | None
    stop_reason: str | None
    error: Json
    steps: int
    input_tokens: int
    output_tokens: int
    cost_usd: float
    waiting: Json
    """What it waits for: questions, times, approvals."""
    events: tuple[Row, ...]
    """All of them, in order: `seq`, `type`, `step`, `payload`, `at`."""
    messages: tuple[Row, ...]
    """The conversation: `n`, `step`, `role`, `trust`, `body`."""
    checkpoints: tuple[Row, ...]
    """One a step: `step`, `kind`, `delta` and who committed it."""
    calls: tuple[Row, ...]
    """The ledger of its tool calls."""
    approvals: tuple[Row, ...]
    """Those that wait for a person now."""

    @property
    def uuid(self) -> UUID:
        """Return the id inside."""
        return decode("run", self.id)

    def events_of(self, kind: str) -> list[Row]:
        """Return the events of one type."""
        return [event for event in self.events if event["type"] == kind]


async def read_local(db: Database, tenant_id: UUID, run_id: UUID) -> LocalRun:
    """Read a run with everything it has; raises `NotFound`."""
    row = await run_reads.view_run(db, tenant_id, run_id)
    pending = await list_approvals(
        db, tenant_id, status=ApprovalStatus.PENDING, run_id=run_id, limit=_PAGE
    )
    return LocalRun(
        id=encode("run", run_id),
        session=encode("session", row["session_id"]),
        agent=f"{row['agent_name']}@{row['agent_version']}",
        status=row["status"],
        output=row["output"],
        stop_reason=row["stop_reason"],
        error=row["error"],
        steps=row["step"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        cost_usd=row["cost_usd"],
        waiting=row["waiting"],
        events=await _all_events(db, tenant_id, run_id),
        messages=await _all(run_reads.read_messages, "n", db, tenant_id, run_id),
        checkpoints=await _all(run_reads.read_checkpoints, "step", db, tenant_id, run_id),
        calls=await _all_calls(db, tenant_id, run_id),
        approvals=tuple(pending),
    )


async def _all_events(db: Database, tenant_id: UUID, run_id: UUID) -> tuple[Row, ...]:
    out: list[Row] = []
    while True:
        after = out[-1]["seq"] if out else 0
        page = await run_reads.read_events(db, tenant_id, run_id, after=after, limit=_PAGE)
        out += [{n: e[n] for n in ("seq", "type", "step", "payload", "at")} for e in page.events]
        if page.is_last:
            return tuple(out)


async def _all(
    read: Any,  # noqa: ANN401 - one of the reads of `run_reads` that go on after a number
    number: str,
    db: Database,
    tenant_id: UUID,
    run_id: UUID,
) -> tuple[Row, ...]:
    out: list[Row] = []
    after = 0
    while page := await read(db, tenant_id, run_id, after=after, limit=_PAGE):
        out += page
        after = page[-1][number]
    return tuple(out)


async def _all_calls(db: Database, tenant_id: UUID, run_id: UUID) -> tuple[Row, ...]:
    out: list[Row] = []
    after = (0, -1)
    while page := await run_reads.read_tool_calls(db, tenant_id, run_id, after=after, limit=_PAGE):
        out += page
        after = (page[-1]["step"], page[-1]["idx"])
    return tuple(out)
