"""Erasures: what a user or a tenant has left is deleted for good.

Runs under way are cancelled first and end as any cancelled run does; then everything goes in small
batches, blobs included, and at last the request itself forgets whom it was about. A request may be
broken off anywhere and goes on where it is: each look deletes what is still there.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from harness_common.blobs.registry import blobs_of
from harness_common.commands import cancel_run
from harness_common.contracts.blob import Blobs
from harness_common.core.errors import HarnessError, TermOver
from harness_common.core.ids import encode
from harness_common.store import erase, json_codec
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, DatabaseUnavailable, run_sql
from harness_common.store.erase import Erasure
from harness_common.store.wipe import give_way
from harness_worker.scheduler.blob_sweep import sweep
from harness_worker.scheduler.looper import Look, Shared

EVERY_S: Final = 2.0
AGAIN_S: Final = 0.5
"""While runs are stopped or blobs are waited for."""
STOPPED: Final = 100
_LEAST_PAUSE_S: Final = 0.02

log = structlog.get_logger()


class EraseLoop:
    """Works off requests for erasure, one after another."""

    name = "erase"

    def __init__(self, shared: Shared, blobs: Blobs | None = None) -> None:
        self._shared = shared
        self._channel = shared.signals()
        self._blobs = blobs or blobs_of(shared.settings)
        self._open: list[Erasure] = []
        self._look_at = 0.0
        self._next = 0.0

    async def run_once(self, look: Look) -> int:
        """Do one batch of the oldest request. Returns 0: it does not make the scheduler hurry."""
        del look
        begun = time.monotonic()
        if begun >= self._next:
            try:
                pause_s = await self.step()
            except TermOver:
                raise
            except DatabaseUnavailable as error:  # a lock or a statement that took too long
                log.warning("erase.gave_way", error=str(error)[:300])
                pause_s = AGAIN_S
                self._next_first()
            except Exception:
                log.exception("erase.failed", erasure_ids=[self._shown(o) for o in self._open[:1]])
                pause_s = EVERY_S
                self._next_first()
            took_s = time.monotonic() - begun
            share = self._shared.settings.retention.share
            pause_s = max(pause_s, _LEAST_PAUSE_S, took_s * (1 / share - 1))
            self._next = time.monotonic() + pause_s
        if self._open:
            self._shared.ask_again(max(0.0, self._next - time.monotonic()))
        return 0

    async def step(self) -> float:
        """Do one batch; return the pause after it, 0 when there is more to do at once."""
        if not self._open or time.monotonic() >= self._look_at:
            await self._look()
            if not self._open:
                return EVERY_S
        one = self._open[0]
        pause_s = await self._batch(one)
        if one.phase == "done":
            self._open.pop(0)
        elif pause_s:  # somebody else has to do something: the next one meanwhile
            self._next_first()
        return pause_s

    def _next_first(self) -> None:
        """Go on with the next request: one that cannot go on must not hold up those behind it."""
        self._open.extend(self._open[:1])
        del self._open[:1]

    def _shown(self, one: Erasure) -> str:
        return encode("erasure", one.id)

    async def _look(self) -> None:
        """Add what was asked for since: it must not wait for one that waits for somebody else."""
        known = [one.id for one in self._open]
        rows = await self._shared.db.fetch("erasures_open", {"known": known})
        self._open += [Erasure.of(row) for row in rows]
        self._look_at = time.monotonic() + EVERY_S

    async def _batch(self, one: Erasure) -> float:
        if one.phase == "stopping":
            return await self._stop_runs(one)
        if one.phase == "blobs":
            return await self._wait_for_blobs(one)
        return await self._erase(one)

    async def _stop_runs(self, one: Erasure) -> float:
        """Ask live runs to stop; go on when there are none."""
        db = self._shared.db
        if one.whole_tenant:
            async with self._tx() as conn:
                await run_sql(conn, "erase_close", {"tenant_id": one.tenant_id}, db.timeout_s)
        live = await erase.live_runs(db, one, STOPPED)
        for row in live:
            if not row["cancel_requested"]:
                await self._cancel(one, row["id"])
        if live:
            return AGAIN_S
        await self._note(one, "erasing")
        return 0.0

    async def _cancel(self, one: Erasure, run_id: object) -> None:
        try:
            asked = await cancel_run(
                self._shared.db, one.tenant_id, run_id,  # type: ignore[arg-type]
                by=encode("erasure", one.id), reason="what it has left is being erased",
            )  # fmt: skip
        except (HarnessError, KeyError, TypeError, ValueError) as error:
            log.error("erase.not_cancelled", run_id=str(run_id), error=repr(error)[:300])
            return
        if asked.claimed_by is not None and self._channel is not None:
            await self._channel.cancel(asked.claimed_by, run_id)  # type: ignore[arg-type]

    async def _erase(self, one: Erasure) -> float:
        """Erase a batch; with nothing left, see that no run has begun meanwhile."""
        config, timeout_s = self._shared.settings.retention, self._shared.db.timeout_s
        async with self._tx() as conn:
            if one.whole_tenant:
                (keys,) = await run_sql(conn, "erase_keys", {"tenant_id": one.tenant_id}, timeout_s)
                one.counts.update(keys)
            more = await erase.erase_runs(conn, one, config.batch_rows, timeout_s)
            if not more:
                rest = erase.erase_tenant_rest if one.whole_tenant else erase.erase_user_rest
                more = await rest(conn, one, config.batch_rows, timeout_s)
            await self._write(conn, one)
        if more:
            return 0.0
        again = bool(await erase.live_runs(self._shared.db, one, 1))
        await self._note(one, "stopping" if again else "blobs")
        return 0.0

    async def _wait_for_blobs(self, one: Erasure) -> float:
        """End when the blobs are deleted."""
        db = self._shared.db
        (left,) = await db.fetch("erase_left", one.whose)
        if left["blobs"]:
            await sweep(self._shared, self._blobs)
            return AGAIN_S
        if left["sessions"]:
            await self._note(one, "stopping")
            return AGAIN_S
        one.phase = "done"
        async with self._tx() as conn:
            if one.whole_tenant:
                await erase.forget_tenant(conn, one.tenant_id, db.timeout_s)
            if await run_sql(conn, "erasure_done", self._row(one), db.timeout_s):
                self._record(conn, one)
        log.info("erasure.done", erasure_id=encode("erasure", one.id), **one.counts)
        return 0.0

    def _record(self, conn: Connection, one: Erasure) -> None:
        """Tell in numbers what was erased; neither whose it was nor what it said."""
        verb = "tenant.erased" if one.whole_tenant else "user.erased"
        entry = Entry(verb, encode("erasure", one.id), dict(one.counts))
        actor = Actor(one.asked_by, one.request_id)
        record(conn, one.asked_in, actor, entry)

    async def _note(self, one: Erasure, phase: str) -> None:
        one.phase = phase
        async with self._tx() as conn:
            await self._write(conn, one)

    async def _write(self, conn: Connection, one: Erasure) -> None:
        await run_sql(conn, "erasure_note", self._row(one), self._shared.db.timeout_s)

    def _row(self, one: Erasure) -> dict[str, object]:
        counts = {name: n for name, n in one.counts.items() if n}
        return {
            "tenant_id": one.asked_in, "id": one.id, "phase": one.phase,
            "counts": json_codec.dumps_text(counts),
        }  # fmt: skip

    @asynccontextmanager
    async def _tx(self) -> AsyncIterator[Connection]:
        """Open a transaction that gives way to others, holds the term, and lasts."""
        async with self._shared.db.transaction() as conn:
            await give_way(conn, self._shared.db.timeout_s, lasting=True)
            await self._shared.check_term(conn)
            yield conn
