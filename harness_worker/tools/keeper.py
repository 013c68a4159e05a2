"""Keeps what reads and idempotent calls gave while others of their step still go on, so that a
crash repeats only what was not finished.

Nothing is written for what ends together: results wait a moment for others, and those that the
step's own commit will soon write are left to it. A step of one call pays nothing.
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from harness_common.core.step import CallOutcome
from harness_common.core.tool_call import ENDED
from harness_common.store import json_codec
from harness_common.store.connection import DatabaseUnavailable, run_sql
from harness_common.store.keyring import writing_key
from harness_common.store.sealed import seal_outcome
from harness_common.store.writes import outcome_rows
from harness_worker.tools.call import ToolScope

KEEP_AFTER_S: Final = 0.05
"""How long a result waits for others of its step before it is worth a statement."""

log = structlog.get_logger()


class Keeper:
    """The results of one step that its commit has not written yet."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope
        self._new: list[CallOutcome] = []
        self.kept: set[int] = set()
        """The calls whose results the ledger has, by index."""
        self._task: asyncio.Task[None] | None = None
        self._writing = False

    def add(self, outcome: CallOutcome) -> None:
        """Take a result; written if the step goes on for a while."""
        if outcome.recorded or outcome.status not in ENDED:
            return
        self._new.append(outcome)
        if self._task is None:
            self._task = asyncio.ensure_future(self._write_soon())

    async def close(self) -> None:
        """Stop; what is being written is awaited, so that the step's commit comes after it."""
        task = self._task
        if task is None:
            return
        if not self._writing:
            task.cancel()
        await asyncio.wait([task])

    async def flush(self) -> None:
        """Write what there is: the step ends without a commit of its own."""
        await self.close()
        batch, self._new = self._new, []
        try:
            if batch:
                await self._write(batch)
        except DatabaseUnavailable as error:
            log.warning("ledger.not_kept", calls=len(batch), error=str(error))

    async def _write_soon(self) -> None:
        while self._new:
            await asyncio.sleep(KEEP_AFTER_S)
            batch, self._new = self._new, []
            self._writing = True
            try:
                await self._write(batch)
            except DatabaseUnavailable as error:
                log.warning("ledger.not_kept", calls=len(batch), error=str(error))
            except Exception:  # the step's own commit says what is wrong with them
                log.exception("ledger.not_kept", calls=len(batch))
            finally:
                self._writing = False
        self._task = None

    async def _write(self, batch: list[CallOutcome]) -> None:
        scope, timeout_s = self._scope, self._scope.db.timeout_s
        async with scope.db.connection() as conn:
            key = await writing_key(conn, scope.run.tenant_id, timeout_s)
            rows = [seal_outcome(key, row) for row in outcome_rows(scope.step, batch)]
            params = {
                "tenant_id": scope.run.tenant_id,
                "run_id": scope.run.id,
                "version": scope.run.version,
                "fence": scope.run.fence,
                "claim_id": scope.run.claim_id,
                "outcomes": json_codec.dumps_text(rows),
            }
            kept = await run_sql(conn, "call_keep", params, timeout_s)
        self.kept.update(row["idx"] for row in kept)
