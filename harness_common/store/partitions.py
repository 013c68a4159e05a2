"""Weekly partitions of `events` and `checkpoints`, by the time inside the run's UUIDv7.

They are made ahead, by `store.migrate` and by the scheduler's `prune` loop. There is no default
partition: a row without a home is an error that is seen, not a table that nobody can drop.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from sqlalchemy import Connection, text

PARTITIONED: Final = ("events", "checkpoints")
WEEK: Final = timedelta(weeks=1)


def week_start(at: datetime) -> datetime:
    """Return the Monday 00:00 UTC at or before `at`."""
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())


def lowest_id(at: datetime) -> UUID:
    """Return the smallest UUID whose time is `at` (milliseconds in the top 48 bits)."""
    return UUID(int=(int(at.timestamp() * 1000) & (2**48 - 1)) << 80)


def ensure_partitions(connection: Connection, weeks_ahead: int) -> list[str]:
    """Make the partitions from last week to `weeks_ahead` by Postgres time; return the names of new
    ones.

    By a function of the schema's owner, since only the owner may add one; it also closes them to
    whoever comes directly.
    """
    now = connection.execute(text("SELECT clock_timestamp()")).scalar_one()
    made = []
    for offset in range(-1, weeks_ahead + 1):
        start = week_start(now) + offset * WEEK
        for table in PARTITIONED:
            query = text("SELECT make_partition(:table, :start)")
            if connection.execute(query, {"table": table, "start": start}).scalar_one():
                made.append(f"{table}_{start:%Y%m%d}")
    return made
