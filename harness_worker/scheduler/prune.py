"""Upkeep: partitions made ahead, idempotency keys and dead workers' rows dropped. Once at the start
of a term, then hourly.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from sqlalchemy import create_engine

from harness_common.store.db import sqlalchemy_url
from harness_common.store.partitions import ensure_partitions
from harness_worker.scheduler.looper import Look, Shared

EVERY_S: Final = 3600.0


class PruneLoop:
    """Keeps the house."""

    name = "prune"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._next = 0.0

    async def run_once(self, look: Look) -> int:
        """Do the hourly upkeep when its hour has come."""
        del look
        if time.monotonic() < self._next:
            return 0
        self._next = time.monotonic() + EVERY_S
        made = await asyncio.to_thread(self._partitions)
        row = await self._shared.db.fetch_one(
            "prune",
            {
                "key_ttl_s": float(self._shared.settings.api.idempotency_ttl_s),
                "term": self._shared.term,
            },
        )
        assert row is not None
        return made + int(row["keys"]) + int(row["workers"])

    def _partitions(self) -> int:
        engine = create_engine(sqlalchemy_url(self._shared.settings.require_database_url()))
        try:
            with engine.begin() as connection:
                return len(
                    ensure_partitions(
                        connection, self._shared.settings.scheduler.partitions_ahead_weeks
                    )
                )
        finally:
            engine.dispose()
