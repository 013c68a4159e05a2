"""Taking ownership of runs, with what their next step needs, in one statement."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Final
from uuid import UUID

import structlog

from harness_common.core.context import closed_past
from harness_common.core.context_view import (
    CONTEXT,
    Compaction,
    Shown,
    first_needed,
    is_summary,
    needs_history,
    view,
)
from harness_common.core.guardrail import NOT_SHOWN
from harness_common.core.ids import encode
from harness_common.core.message import Message, Text, ToolResult, loads
from harness_common.core.values import replace
from harness_common.store import json_codec
from harness_common.store.connection import DatabaseUnavailable, Row
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun, row_time, run_from_row
from harness_common.store.writes import Applied

log = structlog.get_logger()

_AGAIN_S: Final = 2.0
_AGAIN_MAX_S: Final = 60.0
"""When a run that was given back is rung for again; doubled each time, up to the second."""


@dataclass(frozen=True, slots=True)
class Want:
    """A run to claim at exactly `version`; `have` messages of it are known already."""

    tenant_id: UUID
    run_id: UUID
    version: int
    claim_id: UUID
    have: int = 0


@dataclass(frozen=True, slots=True)
class Tail:
    """The messages of a run from number `first` on."""

    messages: tuple[Message, ...] = ()
    first: int = 1

    @property
    def next(self) -> int:
        """The number of the message after the last."""
        return self.first + len(self.messages)

    def grown(self, messages: tuple[Message, ...], first: int) -> Tail:
        """Add messages, and drop those before number `first`."""
        first = max(first, self.first)
        return Tail((self.messages + messages)[first - self.first :], first)


@dataclass(frozen=True, slots=True)
class Claimed:
    """A run that this process owns now, and what its next step needs."""

    run: StoredRun
    now: datetime
    rung_at: datetime | None
    messages: tuple[Message, ...]
    """Messages after those already known, as far as they are shown."""
    calls: tuple[dict[str, Any], ...]
    """Ledger rows of the coming tools step."""
    crowded: bool = False
    """Others wait for the slot: the run yields when its turn is over."""
    rated: bool = False
    """Its tenant (or the platform) has a limit on steps per second: each step is claimed anew."""
    budgeted: bool = False
    """Its tenant (or the platform) has a daily limit: a step reserves before it spends."""
    wait_s: float = 0.0
    """How long the step has to wait for the rate."""
    put_off: bool = False
    """The rate has no room soon: the step is to try again after `wait_s`, at most a minute."""

    def tail(self, known: Tail) -> Tail:
        """Return the run's messages from the first that is shown on, given those known before."""
        state = self.run.state
        first = max(first_needed(state.memo), known.first)
        if first > known.next:
            return Tail(self.messages, state.messages + 1 - len(self.messages))
        kept = known.messages[first - known.first : state.messages + 1 - known.first]
        return Tail(kept + self.messages, first)


async def claim(
    db: Database, wants: Sequence[Want], *, worker: UUID, hold_s: float
) -> list[Claimed | None]:
    """Claim runs; None for each that somebody else has or that moved on.

    `hold_s` is after how long the scheduler looks again. Commits asynchronously: a claim that a
    Postgres crash forgets is safe, since the next one draws another claim id. A lost reply leaves a
    claim nobody works on; the heartbeat finds it.
    """
    rows = await db.fetch(
        "claim",
        {
            "wants": json_codec.dumps_text(
                [
                    {
                        "tenant_id": w.tenant_id,
                        "run_id": w.run_id,
                        "version": w.version,
                        "claim_id": w.claim_id,
                        "have": w.have,
                    }
                    for w in wants
                ]
            ),
            "count": len(wants),
            "worker": worker,
            "hold_s": hold_s,
        },
    )
    got = {row["claim_id"]: await _claimed_or_none(db, row) for row in rows}
    return [got.get(w.claim_id) for w in wants]


async def _claimed_or_none(db: Database, row: Row) -> Claimed | None:
    """Read a claimed row; one that cannot be read goes back, and must not cost its neighbours."""
    try:
        return _claimed(row)
    except (KeyError, TypeError, ValueError) as error:
        log.error("run.unreadable", run_id=encode("run", row["id"]), error=repr(error))
        await unclaim(db, row["tenant_id"], row["id"], row["claim_id"])
        return None


async def unclaim(db: Database, tenant_id: UUID, run_id: UUID, claim_id: UUID) -> None:
    """Give back a claim untouched: another process may be of a version, or have a key, that can
    read the run. Best effort; the heartbeat finds a claim that nobody works on.
    """
    params = {"tenant_id": tenant_id, "run_id": run_id, "claim_id": claim_id}
    with contextlib.suppress(DatabaseUnavailable):
        await db.fetch("unclaim", params | {"first_s": _AGAIN_S, "longest_s": _AGAIN_MAX_S})


def _claimed(row: Row) -> Claimed:
    return Claimed(
        run_from_row(row),
        row_time(row),
        row["rung_at"],
        tuple(loads(text) for text in row["new_messages"] or ()),
        tuple(row["calls"] or ()),
        row["crowded"],
        row["rated"],
        row["budgeted"],
        row["wait_s"],
        row["put_off"],
    )


def fresh_calls(applied: Applied) -> tuple[dict[str, Any], ...]:
    """Return the ledger rows that a commit has just proposed, as `claim` would read them."""
    empty = dict.fromkeys(
        (
            "attempt_id", "resume_at", "result", "error_type", "trust", "effect", "tool_version",
            "fingerprint", "ran_arguments", "failed_attempts", "duplicate_of", "cached_from",
            "served_by", "policy",
        )
    )  # fmt: skip
    return tuple(
        empty
        | {
            "idx": i,
            "tool_use_id": use.id,
            "name": use.name,
            "arguments": use.raw or use.input,
            "status": "proposed",
            "attempt": 0,
            "artifacts": [],
            "duration_ms": None,
            "cost_usd": 0.0,
            "input_tokens": 0,
            "output_tokens": 0,
        }
        for i, use in enumerate(applied.transition.proposal.tool_uses())
    )


async def load_history(db: Database, run: StoredRun) -> tuple[Shown, ...]:
    """Read what is shown of the session's earlier runs, with every unanswered tool use answered as
    cancelled.
    """
    if run.prev_run_id is None or not needs_history(run.state.memo):
        return ()
    rows = await db.fetch("history", {"tenant_id": run.tenant_id, "prev_run_id": run.prev_run_id})
    return history_of(rows)


def history_of(rows: Sequence[Row]) -> tuple[Shown, ...]:
    """Put the conversation of several runs together from the rows of `history.sql`."""
    past: tuple[Shown, ...] = ()
    for run_id, of_run in groupby(rows, key=lambda row: row["run_id"]):
        found = list(of_run)
        context = found[0]["context"]
        own = [_message(row) for row in found]
        compaction = Compaction.of({CONTEXT: context}) if context else None
        shown = view(past, own, found[0]["n"], compaction)
        past = tuple(
            one if ":" in one.origin or not one.origin else Shown(one.message, _of(run_id, one))
            for one in shown
        )
    return closed_past(past)


def _message(row: Row) -> Message:
    """Read a message; of one that a guardrail refused it is only told that there was one."""
    message = loads(row["body"])
    if not row["refused"] or is_summary(message):
        return message
    results = (b for b in message.content if isinstance(b, ToolResult))
    withheld = tuple(replace(b, content=NOT_SHOWN) for b in results)
    return replace(message, content=withheld or (Text(NOT_SHOWN),))


def _of(run_id: UUID, one: Shown) -> str:
    return f"{run_id.hex}:{one.origin}"
