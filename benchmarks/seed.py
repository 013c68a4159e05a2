"""Seed a database with many runs as they are in life: `python -m benchmarks.seed URL`.

Tenants of different sizes, agents, sessions with a few runs each, tags, all statuses, events,
checkpoints, messages and tool calls, spread over some months. Made by SQL inside of Postgres, so
that 100,000 runs with 2,000,000 events take minutes; triggers are off meanwhile, which needs a
superuser. Nobody works on what is seeded: runs that are not over wait for a person.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, LiteralString
from uuid import UUID

import psycopg
from psycopg import sql

from harness_common.contracts.agent import AgentSpec
from harness_common.core.budget import Limits
from harness_common.store import json_codec
from harness_common.store.partitions import PARTITIONED, WEEK, lowest_id, week_start

_BATCH: Final = 5_000
_SHARES: Final = (0.6, 0.2, 0.1, 0.05, 0.05)
"""How much of all runs each tenant has."""
_AGENTS: Final = ("analyst", "digest", "refund", "triage", "writer", "researcher", "billing", "ops")

_TENANT: LiteralString = """
WITH t AS (INSERT INTO tenants (name) VALUES (%(name)s) RETURNING tenant_id),
     s AS (INSERT INTO tenant_slots (tenant_id, max_running) SELECT tenant_id, 100 FROM t)
INSERT INTO agents (tenant_id, name, version, spec, digest, created_by)
SELECT tenant_id, name, 1, %(spec)s::jsonb, '', 'seed' FROM t, unnest(%(agents)s::text[]) AS name
RETURNING tenant_id
"""
_RUNS: Final = (Path(__file__).parent / "seed_runs.sql").read_text()


@dataclass(frozen=True, slots=True)
class Seeded:
    """What there is now."""

    tenants: tuple[UUID, ...]
    runs: int
    events: int
    took_s: float


def seed(
    database_url: str, runs: int, *, weeks: int = 16, say: Callable[[str], None] = lambda _: None
) -> Seeded:
    """Seed `runs` runs of five tenants over the last `weeks` weeks, the last one an hour ago."""
    begun = time.monotonic()
    last = datetime.now(UTC) - timedelta(hours=1)
    first = last - timedelta(weeks=weeks)
    agent = AgentSpec(model="scripted/demo", max_turns=50)
    spec = json_codec.dumps_text(agent.model_dump(mode="json"))
    same = {
        "limits": json_codec.dumps_text(Limits(max_turns=50).to_json()),
        "retry": json_codec.dumps_text(agent.retry.model_dump(mode="json")),
        "first": first, "last": last, "agents": list(_AGENTS),
    }  # fmt: skip
    tenants: list[UUID] = []
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("SET session_replication_role = replica")  # no webhooks for what is long over
        _make_weeks(conn, first, last)
        for number, share in enumerate(_SHARES):
            params = {"name": f"seed{number}", "spec": spec, "agents": list(_AGENTS)}
            row = conn.execute(_TENANT, params).fetchone()
            assert row is not None
            tenants.append(row[0])
            count = int(runs * share)
            for start in range(0, count, _BATCH):
                upto = min(count, start + _BATCH) - 1
                batch = {"tenant": row[0], "from": start, "to": upto, "total": count}
                _make_runs(conn, batch | same)
            say(f"{count:,} runs of seed{number}")
        conn.execute("VACUUM (ANALYZE)")
        conn.execute("CHECKPOINT")  # so that nobody pays afterwards for what was written here
        found = conn.execute("SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM events)")
        counted = found.fetchone()
        assert counted is not None
    return Seeded(tuple(tenants), counted[0], counted[1], time.monotonic() - begun)


def _make_runs(conn: psycopg.Connection[tuple[object, ...]], batch: dict[str, object]) -> None:
    """Make a batch in one transaction; its statements share a table."""
    with conn.transaction(), psycopg.ClientCursor(conn) as cursor:
        cursor.execute(_RUNS.encode(), batch)


def _make_weeks(
    conn: psycopg.Connection[tuple[object, ...]], first: datetime, last: datetime
) -> None:
    """Make the partitions of weeks that are long past."""
    start = week_start(first)
    while start <= last:
        for table in PARTITIONED:
            low, high = lowest_id(start), lowest_id(start + WEEK)
            name = sql.Identifier(f"{table}_{start:%Y%m%d}")
            make = sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} PARTITION OF {} FOR VALUES FROM ({}) TO ({}); "
                "ALTER TABLE {} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY"
            )
            values = (sql.Literal(str(low)), sql.Literal(str(high)))
            conn.execute(make.format(name, sql.Identifier(table), *values, name))
        start += WEEK


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.seed", description=__doc__)
    parser.add_argument("database_url", help="of a migrated database, as a superuser")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--weeks", type=int, default=16)
    args = parser.parse_args(argv)
    made = seed(args.database_url, args.runs, weeks=args.weeks, say=lambda t: print(t, flush=True))
    print(f"{made.runs:,} runs, {made.events:,} events in {made.took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
