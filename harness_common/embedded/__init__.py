"""A real Postgres and a real Valkey out of wheels, run as our own child processes.

`harness dev` uses them when no `HARNESS_DATABASE_URL` or `HARNESS_REDIS_URL` is set; the tests
always do. `python -m harness_common.embedded --data-dir D` runs both in the foreground.

Who may run: a folder is held by an flock that the server inherits (`lock`), so it is free exactly
when the starter *and* everything it started are gone. Servers die with their starter, even by
kill -9 (`process`). As root, Postgres runs as `nobody`, since it refuses uid 0 (`postgres`).
"""

from harness_common.embedded.databases import (
    clone_database,
    create_database,
    database_url,
    drop_database,
)
from harness_common.embedded.postgres import EmbeddedPostgres
from harness_common.embedded.valkey import EmbeddedValkey

__all__ = [
    "EmbeddedPostgres",
    "EmbeddedValkey",
    "clone_database",
    "create_database",
    "database_url",
    "drop_database",
]
