"""Deleting what runs have left: kinds of things, in batches of whole runs, and long runs by pieces.

Used by the scheduler's `retention` and `erase` loops, which decide what may go. Nothing here asks
whether a run is needed. A run says in `pruned` what it has lost (bits, `Kind`), and never gets it
back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntFlag
from typing import Any, Final
from uuid import UUID

from harness_common.core.ids import encode
from harness_common.store.connection import Connection, run_sql, run_together

NEVER: Final = UUID(int=0)
"""Comes before every id."""


class Kind(IntFlag):
    """What a run can lose: the bits of `runs.pruned`."""

    EVENTS = 1
    CHECKPOINTS = 2
    ARTIFACTS = 4
    RECORD = 8
    """The run itself, with its messages and calls. One that has lost it is about to go."""


ALL: Final = Kind.EVENTS | Kind.CHECKPOINTS | Kind.ARTIFACTS | Kind.RECORD
NAMES: Final = {"events": Kind.EVENTS, "checkpoints": Kind.CHECKPOINTS,
                "artifacts": Kind.ARTIFACTS, "runs": Kind.RECORD}  # fmt: skip
_STATEMENTS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.EVENTS: ("wipe_events",),
    Kind.CHECKPOINTS: ("wipe_checkpoints", "wipe_foreign"),
    Kind.ARTIFACTS: ("wipe_artifacts",),
    Kind.RECORD: ("wipe_records",),
}
_DRAINS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.EVENTS: ("drain_events",),
    Kind.CHECKPOINTS: ("drain_checkpoints", "drain_foreign"),
    Kind.ARTIFACTS: (),
    Kind.RECORD: ("drain_messages", "drain_calls"),
}
TABLES: Final[dict[Kind, frozenset[str]]] = {
    Kind.EVENTS: frozenset({"events"}),
    Kind.CHECKPOINTS: frozenset({"checkpoints", "foreign_checkpoints", "foreign_writes"}),
    Kind.ARTIFACTS: frozenset({"artifacts"}),
    Kind.RECORD: frozenset(
        {
            *("runs", "messages", "tool_calls", "inputs", "approvals", "repairs"),
            *("webhook_deliveries", "idempotency_keys", "context_parts"),
        }
    ),
}
"""Where the rows of each kind are. A test compares this with the tables that name a run."""


def kinds_of(kind: Kind) -> tuple[Kind, ...]:
    """Return what goes with a kind: with the run itself everything, and it goes last."""
    return tuple(_STATEMENTS) if Kind.RECORD in kind else tuple(k for k in _STATEMENTS if k in kind)


async def give_way(conn: Connection, timeout_s: float, *, lasting: bool = False) -> None:
    """Let this transaction wait for nobody; unless it is to be `lasting` it may be lost in a crash,
    and what it deleted is deleted again.
    """
    params = {"sync": "on" if lasting else "off"}
    await run_sql(conn, "prune_limits", params, timeout_s)


async def wipe(
    conn: Connection, tenant_id: UUID, ids: Sequence[UUID], kind: Kind, timeout_s: float
) -> Counter[str]:
    """Delete what the runs `ids` have of a kind within the open transaction, in one round trip;
    return how many rows by table. A deletion of the run itself deletes everything.
    """
    if not ids:
        return Counter()
    params: dict[str, Any] = {
        "tenant_id": tenant_id,
        "ids": list(ids),
        "low": min(ids),
        "high": max(ids),
        "threads": [one.hex for one in ids],
        "external": [encode("run", one) for one in ids],
        "bits": int(kind),
    }
    names = [name for one in kinds_of(kind) for name in _STATEMENTS[one]]
    if Kind.RECORD not in kind:
        names.append("prune_mark")
    found: Counter[str] = Counter()
    for rows in await run_together(conn, [(name, params) for name in names], timeout_s):
        found.update(rows[0] if rows else {})
    return found


@dataclass(slots=True)
class Drain:
    """A long run that loses something by pieces, each in a transaction of its own."""

    tenant_id: UUID
    run_id: UUID
    kind: Kind
    _left: list[str] | None = None

    def _statements(self) -> Iterator[str]:
        yield from (name for one in kinds_of(self.kind) for name in _DRAINS[one])

    async def some(self, conn: Connection, limit: int, timeout_s: float) -> Counter[str] | None:
        """Delete up to `limit` rows; None when what is left is little: `wipe` does the rest.

        A run that goes altogether says so first, so that nobody starts another from half of it.
        """
        if self._left is None:
            self._left = list(self._statements())
            if Kind.RECORD in self.kind:
                mark = {"tenant_id": self.tenant_id, "ids": [self.run_id], "bits": int(ALL)}
                await run_sql(conn, "prune_mark", mark, timeout_s)
        if not self._left:
            return None
        name = self._left[0]
        params = {
            "tenant_id": self.tenant_id, "run_id": self.run_id, "thread": self.run_id.hex,
            "limit": limit,
        }  # fmt: skip
        (row,) = await run_sql(conn, name, params, timeout_s)
        if row["rows"] < limit:
            self._left.pop(0)
        return Counter({name.removeprefix("drain_"): row["rows"]})
