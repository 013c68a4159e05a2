"""Reading runs back at any step: checkpoints folded from the nearest snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import zstandard

from harness_common.contracts.request_options import options_of
from harness_common.core.errors import NotFound
from harness_common.core.message import Json
from harness_common.core.replay import initial_content, state_at
from harness_common.core.run import RunState, content
from harness_common.store import json_codec
from harness_common.store.connection import Connection, run_sql
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun, run_from_row


async def checkpoint_state(
    conn: Connection, run: StoredRun, step: int, timeout_s: float
) -> RunState:
    """Return the state of `run` after `step` committed steps, from its checkpoints alone.

    Reads one snapshot and the deltas after it. Raises `NotFound` when a checkpoint on the way is
    missing.
    """
    rows = await run_sql(
        conn,
        "checkpoints_to",
        {"tenant_id": run.tenant_id, "run_id": run.id, "step": step},
        timeout_s,
    )
    options = options_of(run.overrides)
    said = 1 + (options.earlier if options else 0)
    start, first = initial_content() | {"messages": said}, 0
    if rows and rows[0]["snapshot"] is not None:
        start = json_codec.loads(zstandard.decompress(rows[0]["snapshot"]))
        first = rows[0]["step"]
        rows = rows[1:]
    if [r["step"] for r in rows] != list(range(first + 1, step + 1)):
        raise NotFound(f"no checkpoint of step {step}", step=step, committed=run.state.step)
    return state_at(start, (r["delta"] for r in rows), step)


async def contents_at(
    db: Database, tenant_id: UUID, run_id: UUID, steps: Sequence[int]
) -> list[dict[str, Json]]:
    """Return what the checkpoints of a run keep after each of these steps; raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(
            conn, "run_view", {"tenant_id": tenant_id, "run_id": run_id}, db.timeout_s
        )
        if not rows:
            raise NotFound("no such run", field="run_id")
        run = run_from_row(rows[0])
        return [content(await checkpoint_state(conn, run, s, db.timeout_s)) for s in steps]
