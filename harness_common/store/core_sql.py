"""SQLAlchemy Core over the same psycopg connections: for the statements that are not hot.

Apart from `store.postgres`, so that a worker process does not load SQLAlchemy.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ClauseElement
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from harness_common.store import json_codec
from harness_common.store.connection import Connection, Row, open_rows
from harness_common.store.postgres import pg

_DIALECT = PGDialect_psycopg()  # type: ignore[no-untyped-call]
_DIALECT._json_serializer = json_codec.dumps_text
_DIALECT._json_deserializer = None


async def run_core(conn: Connection, statement: ClauseElement, timeout_s: float) -> list[Row]:
    """Compile a SQLAlchemy Core statement and run it on `conn`."""
    compiled = statement.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
    params: dict[str, Any] = dict(compiled.params)
    for key, process in compiled._bind_processors.items():  # type: ignore[attr-defined]
        params[key] = process(params[key])
    postgres = pg(conn)
    cursor = postgres.cursor()
    query = compiled.string.encode()
    await postgres.do(lambda: cursor.execute(query, params), timeout_s)
    rows = await cursor.fetchall() if cursor.description else []
    await open_rows(conn, rows, timeout_s)
    return rows
