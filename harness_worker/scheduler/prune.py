"""Upkeep: partitions made ahead; idempotency keys, dead workers' rows, old firings and facts whose
time is over dropped. Once at the start of a term, then hourly; some a second while there is more.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.db import sqlalchemy_url
from harness_common.store.partitions import ensure_partitions
from harness_worker.scheduler.looper import Look, Shared

EVERY_S: Final = 3600.0
AGAIN_S: Final = 60.0
MORE_S: Final = 1.0
"""While a batch is full: there is more."""
BATCH: Final = 2_000
"""Rows of each kind dropped at once: a statement that takes too long would drop nothing, ever."""
PATIENCE_S: Final = 10.0

log = structlog.get_logger()


class PruneLoop:
    """Keeps the house."""

    name = "prune"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._next = self._partitions_next = 0.0

    async def run_once(self, look: Look) -> int:
        """Do the hourly upkeep when its hour has come; when it fails, again in a minute."""
        del look
        if time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + AGAIN_S
        made = 0
        try:
            if time.monotonic() >= self._partitions_next:
                async with asyncio.timeout(PATIENCE_S):
                    made = await asyncio.to_thread(self._partitions)
                self._partitions_next = time.monotonic() + EVERY_S
            dropped = await self._drop()
        except (SQLAlchemyError, TimeoutError) as error:
            log.warning("partitions.not_made", error=str(error)[:300])
            return 0
        except DatabaseUnavailable as error:  # a lock or a statement that took too long
            log.warning("prune.gave_way", error=str(error)[:300])
            return made
        self._next = time.monotonic() + (MORE_S if max(dropped) >= BATCH else EVERY_S)
        return made + sum(dropped)

    async def _drop(self) -> list[int]:
        """Drop a batch of each kind; return how many rows."""
        params = {
            "key_ttl_s": float(self._shared.settings.api.idempotency_ttl_s),
            "firings_days": self._shared.settings.scheduler.firings_days,
            "term": self._shared.term,
            "most": BATCH,
        }
        rows = [await self._shared.db.fetch_one(name, params) for name in ("prune", "memory_purge")]
        return [int(n) for row in rows if row is not None for n in row.values()]

    def _partitions(self) -> int:
        """Make partitions, each in a transaction of its own that gives way to whoever reads."""
        url = sqlalchemy_url(self._shared.settings.database_login("system"))
        limits = {
            "connect_timeout": 5,
            "options": "-c lock_timeout=1s -c statement_timeout=5s",
        }
        engine = create_engine(url, connect_args=limits, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                weeks = self._shared.settings.scheduler.partitions_ahead_weeks
                return len(ensure_partitions(connection, weeks))
        finally:
            engine.dispose()
