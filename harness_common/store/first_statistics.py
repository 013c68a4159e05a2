"""What the planner is told of tables that have no rows yet.

Hot statements are prepared once a connection, mostly while a new installation is still empty. Of an
empty table the planner expects so little that reading every run of a tenant costs as much as
reading one by its key: it takes either, and keeps it until Postgres analyses the table, which is
up to a minute of load later. So the distribution of the columns that keys begin with is written
down beforehand; the first ANALYZE puts what it finds in its place. Postgres 18 or newer can be
told; an older one plans as it likes until then.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, text

_SINCE: Final = 180000
"""The `server_version_num` from which statistics can be written."""
DISTINCT: Final = {
    # One tenant may own all there is, and have everything in one queue: neither narrows a search.
    "tenant_id": 1, "queue": 1, "status": 3, "held_for": 2,
    "run_id": -0.1, "session_id": -0.5, "step": 10, "idx": 2, "n": 10, "seq": 20,
    "claim_id": -0.5, "claimed_by": -0.5, "wake_at": -0.5, "finished_at": -0.5,
    "parent_run_id": -0.5, "prev_run_id": -0.5,
}  # fmt: skip
"""How many values a column has (as `n_distinct`: below 0 a share of the rows)."""
_WRITE: Final = text(
    "SELECT pg_restore_attribute_stats('schemaname', current_schema()::text, "
    "'relname', c.relname::text, 'attname', a.attname::text, 'inherited', false, "
    "'null_frac', CASE WHEN a.attnotnull THEN 0 ELSE 0.5 END::real, "
    "'avg_width', 16, 'n_distinct', d.n::real) "
    "FROM unnest(CAST(:names AS text[]), CAST(:distinct AS float8[])) AS d (name, n) "
    "JOIN pg_attribute a ON a.attname = d.name AND NOT a.attisdropped "
    "JOIN pg_class c ON c.oid = a.attrelid "
    "WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r' AND c.reltuples <= 0"
)


def write_first_statistics(connection: Connection) -> None:
    """Describe every table that was never analysed with a row in it; safe to repeat."""
    if connection.scalar(text("SELECT current_setting('server_version_num')::int")) < _SINCE:
        return
    connection.execute(
        _WRITE,
        {
            "names": list(DISTINCT),
            "distinct": [float(n) for n in DISTINCT.values()],
        },
    )
