"""`sql_query` and `sql_schema`: the data files of `settings.tool.sql_sources` as tables, in DuckDB
inside the worker.

The files are loaded first; then external access is switched off and the configuration locked, so
that no query can reach a file, the network or an extension. A query must be one SELECT by DuckDB's
own parser, and runs in a read-only transaction, which also stops a WITH that writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from harness_common.contracts.tool import Tool
from harness_common.core.errors import Denied, HarnessError, Invalid, NotFound, Permanent
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool
from harness_worker.tools.lazy import lazy_module

if TYPE_CHECKING:
    import duckdb
else:
    duckdb = lazy_module("duckdb")

_QUERY = "sql_query"
_SCHEMA = "sql_schema"
_DEFAULT_ROWS = 200
_MAX_ROWS = 10_000
_MAX_RESULT_CHARS = 1024 * 1024
_MAX_SQL_CHARS = 20_000
_MAX_TIME_LIMIT_S = 25.0
"""Below the 30 s of an internal tool, so that the query is told its time limit and not the
tool's."""

_READERS = {
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
    ".parquet": "read_parquet",
}

_CONFIG: dict[str, Any] = {
    "threads": 2,
    "memory_limit": "512MB",
    "temp_directory": "",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # Otherwise an unknown table name is looked up among the Python variables of the worker.
    "python_enable_replacements": "false",
}


def build(settings: Settings) -> list[Tool]:
    """Build both tools over the folder of the settings."""
    sources = Sources(settings.tool.sql_sources)

    @tool(effect="read", permission_tags=["database"], reads_private=True)
    async def sql_query(
        sql: Annotated[
            str,
            Field(
                min_length=1,
                max_length=_MAX_SQL_CHARS,
                description="One SELECT in DuckDB's dialect (close to PostgreSQL).",
            ),
        ],
        max_rows: Annotated[
            int, Field(ge=1, le=_MAX_ROWS, description="The most rows to return.")
        ] = _DEFAULT_ROWS,
        time_limit_s: Annotated[
            float, Field(gt=0, le=_MAX_TIME_LIMIT_S, description="When to give up.")
        ] = _MAX_TIME_LIMIT_S,
    ) -> Json:
        """Query the operator's data files (CSV, JSON, Parquet) with SQL.

        Use it for every question about numbers in the data: let the database count, sum and group,
        and ask for few rows. Call sql_schema first to learn the tables and columns. One statement:
        SELECT, WITH, DESCRIBE, SHOW or SUMMARIZE.

        Returns {columns, rows, row_count, truncated}; rows is a list of lists in the order of
        columns. Dates are ISO 8601 text; decimals are numbers, or text when a number would lose
        digits. When truncated is true there are more rows.
        Limits: 200 rows unless max_rows says otherwise, 10,000 at most; 1 MiB; 25 s. Nothing can be
        changed.
        """
        return await _cancellable(sources, _QUERY, time_limit_s, lambda c: _query(c, sql, max_rows))

    @tool(effect="read", permission_tags=["database"], reads_private=True)
    async def sql_schema(
        table: Annotated[
            str | None, Field(max_length=200, description="Only this table; all when left out.")
        ] = None,
    ) -> Json:
        """List the tables that sql_query can read, with their columns and sizes.

        Use it before the first query, so that you need not guess names.

        Returns {tables, skipped}; a table is {name, file, row_count, columns} and a column {name,
        type}. skipped lists files that could not be loaded, and why.
        """
        return await _cancellable(sources, _SCHEMA, _MAX_TIME_LIMIT_S, lambda c: _schema(c, table))

    return [sql_query, sql_schema]


@dataclass(frozen=True, slots=True)
class Loaded:
    """One state of the source folder in memory."""

    fingerprint: tuple[tuple[str, int, int], ...]
    connection: duckdb.DuckDBPyConnection
    files: dict[str, str]
    """Table name to file name."""
    skipped: list[dict[str, str]] = field(default_factory=list)


class Sources:
    """The tables, loaded at the first query and again when a file has changed; safe to use from
    threads.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: Loaded | None = None

    def loaded(self, name: str) -> Loaded:
        """Return the current tables; raises `Denied` when the operator has set no folder."""
        folder = self._folder
        if folder is None:
            raise Denied(
                f"Tool {name!r} has no data: the operator has set no folder. "
                "Ask the operator to set HARNESS_TOOL__SQL_SOURCES; do not call it before that.",
                code="E403",
                tool=name,
            )
        with self._lock:
            try:
                files = _files(folder.resolve(strict=True))
                fingerprint = tuple((f.name, (s := f.stat()).st_mtime_ns, s.st_size) for f in files)
            except OSError as problem:
                raise Permanent(
                    f"Tool {name!r} cannot read its data folder ({problem.strerror}). "
                    "The operator must check HARNESS_TOOL__SQL_SOURCES.",
                    code="SQL_SOURCES_MISSING",
                    tool=name,
                ) from problem
            if self._loaded is None or self._loaded.fingerprint != fingerprint:
                self._loaded = _load(files, fingerprint)
            return self._loaded


@dataclass(frozen=True, slots=True)
class Cursor:
    """What one call works with."""

    loaded: Loaded
    cursor: duckdb.DuckDBPyConnection


def _files(folder: Path) -> list[Path]:
    """List the data files of the folder itself, without links that lead out of it."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in _READERS
        and path.is_file()
        and path.resolve().is_relative_to(folder)
    )


def _load(files: list[Path], fingerprint: tuple[tuple[str, int, int], ...]) -> Loaded:
    connection = duckdb.connect(":memory:", config=_CONFIG)
    loaded = Loaded(fingerprint, connection, {})
    for path in files:
        table = _table_name(path, loaded.files)
        reader = _READERS[path.suffix.lower()]
        source = re.sub(r"([*?\[])", r"[\1]", str(path)).replace("'", "''")
        try:
            # The names are the operator's files, quoted; DDL takes no parameters.
            connection.execute(f"CREATE TABLE \"{table}\" AS FROM {reader}('{source}')")
        except duckdb.Error as problem:
            loaded.skipped.append({"file": path.name, "cause": _first_line(problem)})
        else:
            loaded.files[table] = path.name
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return loaded


def _table_name(path: Path, taken: dict[str, str]) -> str:
    """Make a name that needs no quotes; a second file of the same stem gets its ending as well."""
    stem = re.sub(r"\W+", "_", path.stem).strip("_").lower() or "data"
    stem = f"t_{stem}" if stem[0].isdigit() else stem
    name = stem if stem not in taken else f"{stem}_{path.suffix[1:].lower()}"
    number = 2
    while name in taken:
        name, number = f"{stem}_{number}", number + 1
    return name


async def _cancellable(
    sources: Sources, name: str, time_limit_s: float, work: Callable[[Cursor], Json]
) -> Json:
    """Run `work` in a thread and interrupt the query when the time is up or this call is
    cancelled.
    """
    loaded = await asyncio.to_thread(sources.loaded, name)
    # A cursor is a connection of its own to the same tables: interrupt reaches this query only.
    cursor = loaded.connection.cursor()
    running = asyncio.ensure_future(
        asyncio.to_thread(_in_transaction, name, Cursor(loaded, cursor), time_limit_s, work)
    )
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        cursor.interrupt()
        # The thread ends within milliseconds; its result no longer matters.
        running.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _in_transaction(
    name: str, cursor: Cursor, time_limit_s: float, work: Callable[[Cursor], Json]
) -> Json:
    timer = threading.Timer(time_limit_s, cursor.cursor.interrupt)
    timer.daemon = True
    timer.start()
    try:
        # Stops what parses as a SELECT and yet writes: WITH x AS (INSERT … RETURNING …) SELECT …
        cursor.cursor.execute("BEGIN TRANSACTION READ ONLY")
        return work(cursor)
    except duckdb.Error as problem:
        raise _explain(name, problem, cursor.loaded, time_limit_s) from problem
    finally:
        timer.cancel()
        with contextlib.suppress(duckdb.Error):
            cursor.cursor.execute("ROLLBACK")
        cursor.cursor.close()


def _query(cursor: Cursor, sql: str, max_rows: int) -> Json:
    _require_one_select(cursor.cursor, sql)
    result = cursor.cursor.execute(sql)
    columns = [str(column[0]) for column in result.description or ()]
    rows: list[list[Json]] = []
    chars = 0
    truncated = False
    for row in _rows(result):
        values = [to_json(value) for value in row]
        chars += sum(len(value) if isinstance(value, str) else 8 for value in values)
        if len(rows) >= max_rows or chars > _MAX_RESULT_CHARS:
            truncated = True
            break
        rows.append(values)
    if truncated and not rows:
        raise Permanent(
            f"Tool {_QUERY!r}: one row alone is larger than {_MAX_RESULT_CHARS} characters. "
            "Select fewer columns, or a part of the text with substr().",
            code="RESULT_TOO_LARGE",
            tool=_QUERY,
        )
    return {"columns": columns, "rows": rows, "row_count": len(rows), "truncated": truncated}


def _rows(result: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """Fetch one row at a time: a row may be large, and the caller stops early."""
    while (row := result.fetchone()) is not None:
        yield row


def _require_one_select(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise _refused(f"it holds {len(statements)} statements; send exactly one")
    if statements[0].type != duckdb.StatementType.SELECT:
        kind = statements[0].type.name
        raise _refused(f"{kind} is not allowed; use SELECT, WITH, DESCRIBE, SHOW or SUMMARIZE")


def _refused(cause: str) -> Invalid:
    return Invalid(
        f"Tool {_QUERY!r} did not run the query: {cause}.", code="SQL_ERROR", tool=_QUERY
    )


def _schema(cursor: Cursor, table: str | None) -> Json:
    files = cursor.loaded.files
    if table is not None and table not in files:
        raise NotFound(
            f"Tool {_SCHEMA!r}: there is no table {table!r}. Tables: {', '.join(files) or 'none'}.",
            code="TABLE_NOT_FOUND",
            tool=_SCHEMA,
        )
    found = cursor.cursor.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE schema_name = 'main' AND NOT internal ORDER BY table_name, column_index"
    ).fetchall()
    tables: list[Json] = []
    for name in [table] if table is not None else sorted(files):
        count = cursor.cursor.execute(f'SELECT count(*) FROM "{name}"').fetchone()  # noqa: S608
        columns = [{"name": column, "type": kind} for owner, column, kind in found if owner == name]
        tables.append(
            {
                "name": name,
                "file": files[name],
                "row_count": count[0] if count else 0,
                "columns": columns,
            }
        )
    return {"tables": tables, "skipped": cursor.loaded.skipped}


def _explain(name: str, problem: duckdb.Error, loaded: Loaded, time_limit_s: float) -> HarnessError:
    """Turn DuckDB's error into one of ours; its own words are kept, as they point at the fault."""
    start = f"Tool {name!r}"
    if isinstance(problem, duckdb.InterruptException):
        return Permanent(
            f"{start} stopped the query after {time_limit_s:g} s. "
            "Filter earlier, group, or read fewer rows.",
            code="TIMEOUT",
            tool=name,
        )
    if isinstance(problem, duckdb.OutOfMemoryException):
        return Permanent(
            f"{start} ran out of memory ({_CONFIG['memory_limit']}). "
            "Filter earlier, or group instead of sorting all rows.",
            code="OUT_OF_MEMORY",
            tool=name,
        )
    if isinstance(problem, duckdb.PermissionException):
        return Denied(
            f"{start} refused the query: files, network and extensions are out of reach. "
            f"Query the tables only: {', '.join(loaded.files) or 'none'}.",
            code="E403",
            tool=name,
        )
    return Invalid(
        f"{start} cannot run the query: {str(problem)[:800]}\n"
        f"Tables: {', '.join(loaded.files) or 'none'}. Correct the query and call it again; "
        "sql_schema lists the columns.",
        code="SQL_ERROR",
        tool=name,
    )


def _first_line(problem: duckdb.Error) -> str:
    return str(problem).partition("\n")[0][:200]


def to_json(value: object) -> Json:  # noqa: PLR0911 - one return for each kind of value
    """Turn a value of DuckDB into JSON without losing digits; NaN and infinities become null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return _number(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case bytes() | bytearray():
            return value.hex()
        case dict():
            return {str(key): to_json(part) for key, part in value.items()}
        case list() | tuple():
            return [to_json(part) for part in value]
    return str(value)


def _number(value: Decimal) -> Json:
    if not value.is_finite():
        return None
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)
