"""Retention: what runs have left goes when its time is over.

A round begins every hour: weeks of events and checkpoints of which nothing is to be kept are
dropped as a whole; the rest is deleted in batches of whole runs. One batch a tick, and after each a
pause of several times as long as it took: nothing waits for this loop. What a live run needs stays
(`prune_free.sql`). A round may be broken off anywhere; the next one does what is left.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
import structlog

from harness_common.blobs.registry import blobs_of
from harness_common.contracts.blob import Blobs
from harness_common.core.errors import TermOver
from harness_common.core.ids import encode
from harness_common.store.connection import (
    Connection,
    DatabaseUnavailable,
    Row,
    run_sql,
    run_together,
)
from harness_common.store.partitions import WEEK, lowest_id
from harness_common.store.wipe import NEVER, Drain, Kind, give_way, wipe
from harness_worker.scheduler.blob_sweep import BATCH, GRACE_S, sweep
from harness_worker.scheduler.looper import Look, Shared

EVERY_S: Final = 3600.0
AGAIN_S: Final = 30.0
"""After a lock that could not be had."""
PICKED: Final = 200
"""Runs looked at in one transaction, at the most."""
_FIRST_PICK: Final = 10
"""And at first: how many fit into a batch is seen by what they have."""
_TOOK_TOO_LONG: Final = (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled)
"""Why a batch of one tenant is given up while Postgres is there."""
_LEAST_PAUSE_S: Final = 0.02
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KIND_OF: Final = {"events": Kind.EVENTS, "checkpoints": Kind.CHECKPOINTS}

log = structlog.get_logger()


@dataclass(slots=True)
class _Lane:
    """Runs of one tenant that have lost the same and are past one age; how far it is worked off."""

    tenant_id: UUID
    kind: Kind
    pruned: int
    before: datetime
    after: datetime = _FIRST
    after_id: UUID = NEVER
    drain: Drain | None = None
    sessions: set[UUID] = field(default_factory=set)
    pick: int = _FIRST_PICK
    """Runs to look at next: about as many as a batch takes."""


class RetentionLoop:
    """Deletes what is past its age."""

    name = "retention"

    def __init__(self, shared: Shared, blobs: Blobs | None = None) -> None:
        self._shared = shared
        self._config = shared.settings.retention
        self._blobs = blobs or blobs_of(shared.settings)
        self._round: AsyncIterator[int] | None = None
        self._gave_way = False
        """Whether something was left that can be done soon: somebody held its rows."""
        self._next = 0.0
        self._wiped = 0

    async def run_once(self, look: Look) -> int:
        """Do one batch when its time has come. Returns 0: it does not make the scheduler hurry."""
        del look
        begun = time.monotonic()
        if begun >= self._next:
            self._next = begun + AGAIN_S  # also after what nobody foresaw
            self._next = begun + await self._some(begun)
        if self._round is not None:
            self._shared.ask_again(max(0.0, self._next - time.monotonic()))
        return 0

    async def _some(self, begun: float) -> float:
        """Do one batch; return the pause after it."""
        if self._round is None:
            self._round = self.round()
        try:
            await anext(self._round)
        except StopAsyncIteration:
            self._round = None
            if self._gave_way:
                return AGAIN_S
            return GRACE_S if await self._swept() else EVERY_S
        except DatabaseUnavailable as error:
            log.warning("retention.gave_way", error=str(error)[:300])
            self._round = None
            return AGAIN_S
        except Exception:
            self._round = None
            raise
        took_s = time.monotonic() - begun
        return max(_LEAST_PAUSE_S, took_s * (1 / self._config.share - 1))

    async def _swept(self) -> bool:
        """Delete blobs that are due; tell whether some are left for later."""
        await sweep(self._shared, self._blobs)
        rows = await self._shared.db.fetch("blob_garbage_pick", {"grace_s": 0.0, "limit": 1})
        return bool(rows)

    async def round(self) -> AsyncGenerator[int, None]:
        """Do all there is to do; yield after each batch the rows it deleted."""
        self._gave_way = False
        while await sweep(self._shared, self._blobs) == BATCH:
            yield 0
        async for rows in self._weeks():
            yield rows
        while True:
            self._wiped = 0
            for row in await self._shared.db.fetch("prune_lanes", self._config.days()):
                lane = _Lane(row["tenant_id"], Kind(row["bit"]), row["pruned"], row["before"])
                async for rows in self._apart(self._work_off(lane), lane.tenant_id):
                    yield rows
            if not self._wiped:
                return
            # What has lost one thing, or was a fork's source, may be in another lane now.
            log.info("retention.pruned", runs=self._wiped)

    # --- whole weeks ----------------------------------------------------------------------------

    async def _weeks(self) -> AsyncIterator[int]:
        """Drop the partitions of weeks of which nothing is to be kept."""
        now = datetime.now(UTC)
        for row in await self._shared.db.fetch("partitions_list", {}):
            starts = datetime(row["week"].year, row["week"].month, row["week"].day, tzinfo=UTC)
            if starts + WEEK + timedelta(days=1) < now:
                async for rows in self._apart(self._week(row["parent"], starts)):
                    yield rows

    async def _week(self, parent: str, starts: datetime) -> AsyncIterator[int]:
        kind = _KIND_OF[parent]
        span = {"bit": int(kind), "low": lowest_id(starts), "high": lowest_id(starts + WEEK)}
        found = await self._shared.db.fetch_one("partition_past", span | self._config.days())
        assert found is not None
        if not found["past"]:
            return
        for tenant_id in found["tenants"]:
            async for _ in self._mark(tenant_id, kind, span):
                yield 0
        try:
            async with self._shared.db.transaction() as conn:
                await self._shared.check_term(conn)
                params = {"parent": parent, "starts": starts}
                rows = await run_sql(conn, "partition_drop", params, self._shared.db.timeout_s)
        except DatabaseUnavailable as error:
            # A backup reads for hours: the next round tries again, the rest of this goes on.
            log.warning("partition.not_dropped", parent=parent, error=str(error)[:300])
            rows = [{"dropped": False}]
        if rows[0]["dropped"]:
            self._shared.count("partitions_dropped")
            log.info("partition.dropped", parent=parent, week=starts.date().isoformat())
        yield 0

    async def _mark(self, tenant_id: UUID, kind: Kind, span: dict[str, Any]) -> AsyncIterator[None]:
        """Say of a tenant's runs of a week that they have lost what the partition holds."""
        after = NEVER
        while True:
            async with self._batch() as conn:
                params = span | {"tenant_id": tenant_id, "after": after, "limit": PICKED}
                rows = await self._sql(conn, "partition_pick", params)
                if not rows:
                    return
                after = rows[-1]["id"]
                free = await self._free(conn, tenant_id, rows, kind)
                ids = [row["id"] for row in rows if row["id"] in free]
                about: dict[str, Any] = {"tenant_id": tenant_id, "ids": ids, "bits": int(kind),
                         "threads": [one.hex for one in ids]}  # fmt: skip
                names = ["prune_mark", *(["wipe_foreign"] if kind is Kind.CHECKPOINTS else [])]
                await run_together(
                    conn, [(name, about) for name in names], self._shared.db.timeout_s
                )
            yield

    # --- runs -----------------------------------------------------------------------------------

    async def _work_off(self, lane: _Lane) -> AsyncIterator[int]:
        while True:
            more, rows = await (self._piece(lane) if lane.drain else self._runs(lane))
            if lane.sessions and not lane.drain:
                await self._sessions(lane, None)
            if not more:
                break
            yield rows
        if Kind.RECORD in lane.kind:
            await self._sessions(lane, lowest_id(lane.before))
            yield 0

    async def _runs(self, lane: _Lane) -> tuple[bool, int]:
        """Delete what the next runs of a lane have; return whether there may be more."""
        budget = self._config.batch_rows
        async with self._batch() as conn:
            rows = await self._sql(
                conn,
                "prune_pick",
                {"tenant_id": lane.tenant_id, "pruned": lane.pruned, "before": lane.before,
                 "after": lane.after, "after_id": lane.after_id, "limit": lane.pick},
            )  # fmt: skip
            if not rows:
                return False, 0
            free = await self._free(conn, lane.tenant_id, rows, lane.kind)
            take: list[Row] = []
            total = 0
            for row in rows:
                if row["id"] in free:
                    if take and total + row["rows"] > budget:
                        lane.pick = len(take)
                        break
                    take.append(row)
                    total += row["rows"]
                lane.after, lane.after_id = row["finished_at"], row["id"]
            else:
                lane.pick = min(lane.pick + 1 + lane.pick // 4, PICKED)
            if len(take) == 1 and total > budget:
                lane.drain = Drain(lane.tenant_id, take[0]["id"], lane.kind)
                return True, 0
            await self._wipe(conn, lane, take)
        return True, total

    async def _piece(self, lane: _Lane) -> tuple[bool, int]:
        """Delete a piece of a long run, if still nobody needs it."""
        drain = lane.drain
        assert drain is not None
        async with self._batch() as conn:
            params = {"tenant_id": drain.tenant_id, "run_id": drain.run_id}
            rows = await self._sql(conn, "prune_hold", params)
            if not rows or not await self._free(conn, drain.tenant_id, rows, drain.kind):
                lane.drain = None
                return True, 0
            gone = await drain.some(conn, self._config.batch_rows, self._shared.db.timeout_s)
            if gone is None:
                await self._wipe(conn, lane, rows)
                lane.drain = None
                return True, 0
        self._count(gone)
        return True, sum(gone.values())

    async def _wipe(self, conn: Connection, lane: _Lane, rows: Sequence[Row]) -> None:
        ids = [row["id"] for row in rows]
        timeout_s = self._shared.db.timeout_s
        self._count(await wipe(conn, lane.tenant_id, ids, lane.kind, timeout_s))
        self._wiped += len(ids)
        if Kind.RECORD in lane.kind:
            lane.sessions.update(row["session_id"] for row in rows)

    async def _sessions(self, lane: _Lane, before: UUID | None) -> None:
        """Delete sessions that have no run left. No run starts in one meanwhile."""
        params = {"tenant_id": lane.tenant_id, "ids": list(lane.sessions), "before": before}
        hold: Mapping[str, Any] = {"tenant_id": lane.tenant_id}
        async with self._batch() as conn:
            statements = [("slots_hold", hold), ("wipe_sessions", params)]
            _, rows = await run_together(conn, statements, self._shared.db.timeout_s)
        lane.sessions.clear()
        self._count(rows[0])

    async def _free(
        self, conn: Connection, tenant_id: UUID, rows: Sequence[Row], kind: Kind
    ) -> set[UUID]:
        ids = [row["id"] for row in rows]
        params = {"tenant_id": tenant_id, "ids": ids, "bit": int(kind)}
        return {row["id"] for row in await self._sql(conn, "prune_free", params)}

    # --- helpers --------------------------------------------------------------------------------

    async def _apart(
        self, work: AsyncIterator[int], tenant_id: UUID | None = None
    ) -> AsyncIterator[int]:
        """Do a part of the round; when it fails, the parts after it go on all the same (INV15)."""
        whose = encode("tenant", tenant_id) if tenant_id else None
        try:
            async for rows in work:
                yield rows
            return
        except TermOver:
            raise
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, _TOOK_TOO_LONG):
                raise
            log.warning("retention.gave_way", tenant_id=whose, error=str(error)[:300])
            self._gave_way = True
        except Exception:
            log.exception("retention.failed", tenant_id=whose)
            self._shared.count("retention_failures")
        yield 0

    @asynccontextmanager
    async def _batch(self) -> AsyncIterator[Connection]:
        """Open a transaction that gives way to others and holds the term."""
        async with self._shared.db.transaction() as conn:
            await give_way(conn, self._shared.db.timeout_s)
            await self._shared.check_term(conn)
            yield conn

    async def _sql(self, conn: Connection, name: str, params: dict[str, Any]) -> list[Row]:
        return await run_sql(conn, name, params, self._shared.db.timeout_s)

    def _count(self, gone: dict[str, int]) -> None:
        for name, rows in gone.items():
            self._shared.count(f"pruned_{name}", rows)
