"""Upkeep: partitions made ahead; idempotency keys, dead workers' rows, old firings and facts whose
time is over dropped. Once at the start of a term, then hourly.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError

from harness_common.store.db import sqlalchemy_url
from harness_common.store.partitions import ensure_partitions
from harness_worker.scheduler.looper import Look, Shared

EVERY_S: Final = 3600.0
AGAIN_S: Final = 60.0
PATIENCE_S: Final = 10.0

log = structlog.get_logger()


class PruneLoop:
    """Keeps the house."""

    name = "prune"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._next = 0.0

    async def run_once(self, look: Look) -> int:
        """Do the hourly upkeep when its hour has come; when it fails, again in a minute."""
        del look
        if time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + AGAIN_S
        try:
            async with asyncio.timeout(PATIENCE_S):
                made = await asyncio.to_thread(self._partitions)
        except (SQLAlchemyError, TimeoutError) as error:
            log.warning("partitions.not_made", error=str(error)[:300])
            return 0
        row = await self._shared.db.fetch_one(
            "prune",
            {
                "key_ttl_s": float(self._shared.settings.api.idempotency_ttl_s),
                "firings_days": self._shared.settings.scheduler.firings_days,
                "term": self._shared.term,
            },
        )
        assert row is not None
        over = await self._shared.db.fetch_one("memory_purge", {"term": self._shared.term})
        assert over is not None
        self._next = time.monotonic() + EVERY_S
        return (
            made + int(row["keys"]) + int(row["workers"]) + int(row["firings"]) + int(over["facts"])
        )

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
