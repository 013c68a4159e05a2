"""Unknown effects: calls that were begun and whose outcome nobody knows. Read for people, and the
one write by which a person says what became of one.

Called by the API (reads) and by `commands.effects` (the write, under the run's row lock).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from uuid import UUID

from harness_common.core.errors import Conflict, NotFound
from harness_common.core.ids import encode
from harness_common.core.message import Json
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.db import Database
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import seal_text

ResolvedAs = Literal["succeeded", "failed", "run_again"]
_BECOMES: Final[dict[ResolvedAs, CallStatus]] = {
    "succeeded": CallStatus.SUCCEEDED,
    "failed": CallStatus.FAILED,
    "run_again": CallStatus.PROPOSED,
}


@dataclass(frozen=True, slots=True)
class CallKey:
    """The identity of a tool call."""

    run_id: UUID
    step: int
    index: int

    @property
    def call(self) -> str:
        """Name the call within its run."""
        return f"{self.step}.{self.index}"

    @property
    def shown(self) -> str:
        """Name the call anywhere; also its idempotency key."""
        return f"{encode('run', self.run_id)}.{self.call}"

    def params(self, tenant_id: UUID) -> dict[str, Json]:
        """Return the parameters by which statements name it."""
        return {
            "tenant_id": tenant_id,
            "run_id": self.run_id,
            "step": self.step,
            "idx": self.index,
        }


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a person says of an unknown effect. `result` is what the model is told."""

    outcome: ResolvedAs
    by: str
    reason: str
    result: str | None = None

    def told(self) -> str | None:
        """Return what stands as the result of the call; None when it runs again."""
        if self.outcome == "run_again":
            return None
        if self.result is not None:
            return self.result
        if self.outcome == "succeeded":
            return f"A person checked: the call took effect. {self.reason}"
        return f"A person checked: the call did not take effect. {self.reason}"


async def list_unknown(
    db: Database,
    tenant_id: UUID,
    *,
    run_id: UUID | None = None,
    after: CallKey | None = None,
    limit: int,
) -> list[Row]:
    """Return calls whose outcome is unknown, the newest run's first, after the call `after`."""
    params = {
        "tenant_id": tenant_id,
        "run_id": run_id,
        "after_run": after.run_id if after else None,
        "after_step": after.step if after else 0,
        "after_idx": after.index if after else 0,
        "limit": limit,
    }
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_sql(conn, "effects_unknown", params, db.timeout_s)


async def read_call(db: Database, tenant_id: UUID, key: CallKey) -> Row:
    """Read one call with its run; raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        return await read_call_in(conn, tenant_id, key, db.timeout_s)


async def read_call_in(conn: Connection, tenant_id: UUID, key: CallKey, timeout_s: float) -> Row:
    """Do what `read_call` does within the caller's transaction."""
    rows = await run_sql(conn, "effect_read", key.params(tenant_id), timeout_s)
    if not rows:
        run = encode("run", key.run_id)
        raise NotFound(f"no call {key.call} in {run}", field="call", value=key.call, run_id=run)
    return rows[0]


async def resolve_in(
    conn: Connection, tenant_id: UUID, key: CallKey, said: Resolution, timeout_s: float
) -> int:
    """Write what a person says, if the call is unknown; return how many unknown calls are left in
    its step. The caller holds the run's row. Raises `NotFound`, and `Conflict` with who was first.
    """
    key_of = await writing_key(conn, tenant_id, timeout_s)
    row = {"outcome": said.outcome, "by": said.by, "reason": said.reason}
    params = key.params(tenant_id) | {
        "status": str(_BECOMES[said.outcome]),
        "result": seal_text(key_of, said.told()),
        "error_type": "NOT_DONE" if said.outcome == "failed" else None,
        "resolution": json_codec.dumps_text(row),
    }
    if not await run_sql(conn, "effect_resolve", params, timeout_s):
        raise _not_unknown(key, await read_call_in(conn, tenant_id, key, timeout_s))
    (left,) = await run_sql(conn, "effects_left", key.params(tenant_id), timeout_s)
    return int(left["n"])


def _not_unknown(key: CallKey, row: Row) -> Conflict:
    was = row["resolution"]
    if was is None:
        return Conflict(
            f"call {key.call} is {row['status']}; only an unknown one can be resolved",
            code="EFFECT_NOT_UNKNOWN",
            field="call",
            value=key.call,
            status=row["status"],
        )
    return Conflict(
        f"{was['by']} resolved call {key.call} as {was['outcome']} at {was['at']}: {was['reason']}",
        code="EFFECT_RESOLVED",
        field="call",
        value=key.call,
        status=row["status"],
        resolution=was,
    )
