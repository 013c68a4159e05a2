"""The one writer: the only code that changes what a run is.

`apply` turns transitions into one statement (`sql/commit.sql`): compare what the writer saw, write
run, checkpoint, events, messages, ledger and slot, in one round trip and one fsync. `settle` does
it for an owner, and survives outside inputs that came meanwhile (INV20) and a reply that got lost
(INV10).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import psycopg

from harness_common.batch import Batcher
from harness_common.core.errors import LostOwnership
from harness_common.core.inputs import Input
from harness_common.core.lease import Ownership
from harness_common.core.rules import advance
from harness_common.core.run import TERMINAL, Transition
from harness_common.crypto.aead import CannotDecrypt, KeyMissing
from harness_common.store import json_codec
from harness_common.store.connection import Connection, DatabaseUnavailable, run_sql
from harness_common.store.db import Database
from harness_common.store.keyring import seal_commits
from harness_common.store.rows import StoredRun, run_from_row
from harness_common.store.spans import send_run
from harness_common.store.writes import Applied, NextClaim, StepRecord, Write, finish, prepare
from harness_common.telemetry.traces import traces


async def apply(
    conn: Connection, writes: Sequence[Write], *, timeout_s: float
) -> list[Applied | None]:
    """Commit transitions over runs as they were seen; None for each run that no longer is as it was
    seen.

    One statement: on its own it is a transaction of its own; inside an open transaction it is part
    of it. A run may appear once.
    """
    prepared = [prepare(write) for write in writes]
    bodies = await seal_commits(conn, [p.body for p in prepared], timeout_s)
    rows = await run_sql(conn, "commit", {"writes": json_codec.dumps_text(bodies)}, timeout_s)
    by_run = {row["run_id"]: row for row in rows}
    done = [
        finish(p, by_run[p.write.run.id]) if p.write.run.id in by_run else None for p in prepared
    ]
    if traces.on:
        for one in done:
            _trace_end(one)
    return done


def _trace_end(one: Applied | None) -> None:
    """Send the span of a run that this commit has ended."""
    if one is not None and one.run.state.status in TERMINAL:
        send_run(one.run, one.run.state, one.now)


def group_commit(db: Database) -> Batcher[Write, Applied | None]:
    """Return a committer that lets steps which end at the same time share a round trip and an
    fsync.
    """

    async def work(writes: Sequence[Write]) -> list[Applied | None]:
        async with db.connection() as conn:
            return await apply(conn, writes, timeout_s=db.timeout_s)

    alone_on = (psycopg.Error, TypeError, ValueError, KeyMissing, CannotDecrypt)
    return Batcher(work, largest=64, parallel=2, alone_on=alone_on)


async def settle(
    db: Database,
    commit: Batcher[Write, Applied | None],
    run: StoredRun,
    inputs: Sequence[Input],
    *,
    now: datetime,
    step: StepRecord,
    keep: NextClaim | None = None,
    patience_s: float = 60.0,
) -> Applied:
    """Commit what an owner's step gave.

    When an outside input came meanwhile, the run is read again, advanced again and committed again:
    a finished step is never lost to it (INV20). When the reply to the commit was lost, the row
    tells whether it arrived (INV10). While Postgres is away it is tried for `patience_s`; once more
    when a webhook was removed in that very moment, which the first try had still seen. Raises
    `LostOwnership` when somebody else owns the run, `DatabaseUnavailable` when Postgres stays away.
    """
    owner = Ownership(run.fence, _claim_of(run), step.worker)
    give_up = asyncio.get_running_loop().time() + patience_s
    pause_s, named_gone = 0.05, False
    while True:
        transition = advance(run.state, inputs, now)
        write = Write(run, transition, now, step, keep, snapshot_every=db.config.snapshot_every)
        try:
            applied = await commit(write)
            if applied is not None:
                return applied
            fresh = await read_run(db, run.tenant_id, run.id)
        except psycopg.errors.ForeignKeyViolation:
            if named_gone:
                raise
            named_gone = True
            continue
        except DatabaseUnavailable:
            if asyncio.get_running_loop().time() > give_up:
                raise
            await asyncio.sleep(pause_s * (0.5 + random.random()))
            pause_s = min(2.0, pause_s * 2)
            continue
        if fresh is None or not fresh.owned_by(owner):
            if fresh is not None and arrived(fresh, owner, transition, keep):
                found = Applied(fresh, transition, 0, now)
                if traces.on:
                    _trace_end(found)
                return found
            raise LostOwnership("another claim owns the run", run_id=str(run.id))
        run = fresh


def arrived(
    fresh: StoredRun, owner: Ownership, transition: Transition, keep: NextClaim | None
) -> bool:
    """Tell whether the row is as our own commit left it: nobody went on or claimed since."""
    ours = {None, keep.claim_id if keep else None}
    return (
        fresh.committed_by == owner.claim_id
        and fresh.version == transition.state.version
        and fresh.claim_id in ours
    )


def _claim_of(run: StoredRun) -> UUID:
    if run.claim_id is None:
        raise LostOwnership("the run is not claimed", run_id=str(run.id))
    return run.claim_id


async def read_run(db: Database, tenant_id: UUID, run_id: UUID) -> StoredRun | None:
    """Read a run as it is now, or None."""
    row = await db.fetch_one("read_run", {"tenant_id": tenant_id, "run_id": run_id})
    return run_from_row(row) if row else None


async def lock_run(
    conn: Connection, tenant_id: UUID, run_id: UUID, timeout_s: float
) -> tuple[StoredRun, datetime] | None:
    """Read a run and hold its row until the transaction ends; with Postgres time."""
    rows = await run_sql(conn, "lock_run", {"tenant_id": tenant_id, "run_id": run_id}, timeout_s)
    return (run_from_row(rows[0]), rows[0]["now"]) if rows else None
