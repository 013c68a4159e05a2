"""Counters of Postgres and Valkey, read from outside: transactions, WAL, fsyncs, commands."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, LiteralString

from benchmarks.stack import Lab, Stack

STATS_LAG_S: Final = 11.0
"""A Postgres session that falls idle reports its counters after at most 10 s
(PGSTAT_IDLE_INTERVAL)."""

_READ: LiteralString = """
WITH wal AS (
    SELECT sum(fsyncs) FILTER (WHERE backend_type = 'client backend') AS ours,
           sum(fsyncs) FILTER (WHERE backend_type <> 'client backend') AS others
    FROM pg_stat_io WHERE object = 'wal'
)
SELECT d.xact_commit + d.xact_rollback, coalesce(wal.ours, 0), coalesce(wal.others, 0), s.wal_fpi,
       pg_current_wal_insert_lsn() - '0/0'::pg_lsn
FROM pg_stat_database d, wal, pg_stat_wal s WHERE d.datname = %(name)s
"""
_NAMES: Final = ("transactions", "fsyncs", "walwriter_fsyncs", "full_pages", "wal_bytes")


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at a moment, or their growth over `seconds`."""

    seconds: float
    counts: Mapping[str, float]

    def __sub__(self, before: Reading) -> Reading:
        """Return the growth since `before`."""
        grown = {k: v - before.counts[k] for k, v in self.counts.items()}
        return Reading(self.seconds - before.seconds, grown)

    def net_of(self, idle: Reading) -> dict[str, float]:
        """Return the growth without what an idle stack does in the same time."""
        return {k: v - idle.counts[k] / idle.seconds * self.seconds for k, v in self.counts.items()}

    def per_s(self) -> dict[str, float]:
        """Return the growth per second."""
        return {k: v / self.seconds for k, v in self.counts.items()}


class Meter:
    """Reads the counters of a lab over connections that are in none of them."""

    def __init__(self, stack: Stack, lab: Lab) -> None:
        self._name = lab.name
        self._conn = stack.admin()
        self._redis = stack.redis()
        self._own = 0

    def read(self, **more: float) -> Reading:
        """Read all counters now; `more` are added to them."""
        row = self._conn.execute(_READ, {"name": self._name}).fetchone()
        assert row is not None
        counts = {n: float(str(v)) for n, v in zip(_NAMES, row, strict=True)}
        self._own += 1
        info = self._redis.info("stats")
        assert isinstance(info, dict)
        counts["valkey_commands"] = float(info["total_commands_processed"] - self._own)
        return Reading(time.monotonic(), {**counts, **more})

    def close(self) -> None:
        """Disconnect."""
        self._conn.close()
        self._redis.close()
