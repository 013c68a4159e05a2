"""Refuses to work on a schema that this version cannot use, and says what to do.

Called by workers and the scheduler at their start, and by the API each time it is asked whether it
is ready.
"""

from __future__ import annotations

import asyncio
from typing import Final

import psycopg
import structlog

from harness_common.core.errors import Transient
from harness_common.revisions import fault, known
from harness_common.store.connection import Connection, run_sql
from harness_common.store.db import Database

log = structlog.get_logger()
_WAIT_S: Final = 60.0
_LOOK_S: Final = 1.0


class SchemaUnusable(Transient):
    """The schema is older than this version needs, or newer than it can use."""

    code = "SCHEMA_UNUSABLE"


async def check_schema(conn: Connection, timeout_s: float) -> None:
    """Raise `SchemaUnusable` unless this version can work with the schema."""
    try:
        (row,) = await run_sql(conn, "schema_state", {}, timeout_s)
    except psycopg.errors.UndefinedTable:
        row = {"revision": None, "comment": None}
    if why := fault(row["revision"], row["comment"], known()):
        raise SchemaUnusable(why, revision=row["revision"])


async def wait_for_schema(db: Database, wait_s: float = _WAIT_S) -> None:
    """Wait until the schema can be used: the migration may still be under way. Raises
    `SchemaUnusable` after `wait_s`.
    """
    deadline = asyncio.get_running_loop().time() + wait_s
    while True:
        try:
            async with db.connection() as conn:
                return await check_schema(conn, db.timeout_s)
        except SchemaUnusable as error:
            if asyncio.get_running_loop().time() > deadline:
                raise
            log.warning("schema.unusable", why=error.message)
        await asyncio.sleep(_LOOK_S)
