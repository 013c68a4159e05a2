"""Connections to Postgres: one psycopg pool a process, SQL files by name, and `tenant_transaction`.

Hot statements are files in `store/sql`, run through psycopg and prepared. The rest is SQLAlchemy
Core compiled to the same psycopg connections, so that one pool serves both. Every statement has a
timeout on our side (INV11): TCP keepalive does not fire through a proxy that swallows packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar
from uuid import UUID

import psycopg
import structlog
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import set_json_dumps, set_json_loads
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from harness_common.cancelled import cancel_kept
from harness_common.core.errors import Permanent, Transient
from harness_common.crypto.aead import KeyMissing
from harness_common.settings import DatabaseSettings
from harness_common.store import json_codec
from harness_common.store.pg_errors import without_values
from harness_common.store.sealed import has_sealed

set_json_dumps(json_codec.dumps)
set_json_loads(json_codec.loads)

log = structlog.get_logger()

Row = dict[str, Any]


class Opener(Protocol):
    """What opens encrypted values (`store.keyring`)."""

    async def open_rows(
        self,
        conn: Connection,
        rows: Sequence[Row],
        tenant_id: UUID | None,
        timeout_s: float,
        *,
        many_tenants: bool,
    ) -> None:
        """Open rows in place."""
        ...


Statement = tuple[str, Mapping[str, Any]]
"""The name of a statement (a file of `store/sql`) and its parameters."""


class Connection(Protocol):
    """The seam of the store: whoever runs the statements of `store/sql` by their names is a store.

    `PgConnection` sends them to Postgres; `store.memory` does the same in this process.
    """

    keyring: Opener | None
    tenant_id: UUID | None

    async def run(self, statements: Sequence[Statement], timeout_s: float) -> list[list[Row]]:
        """Run statements in order, in one round trip; each sees what those before it did. Outside a
        transaction they are one.
        """
        ...


class PgConnection(psycopg.AsyncConnection[DictRow]):
    """A connection that knows who opens what is encrypted, and the tenant it is bound to now."""

    keyring: Opener | None = None
    tenant_id: UUID | None = None
    begin: bytes | None = None
    """How the transaction under way began, while nothing has been done in it."""

    async def run(self, statements: Sequence[Statement], timeout_s: float) -> list[list[Row]]:
        """Run statements as `Connection.run` says; several go through psycopg's pipeline."""
        cursors = [self.cursor(binary=True) for _ in statements]

        async def send() -> None:
            if len(statements) == 1:
                name, params = statements[0]
                await cursors[0].execute(sql(name), params)
                return
            async with self.pipeline():
                for cursor, (name, params) in zip(cursors, statements, strict=True):
                    await cursor.execute(sql(name), params)

        await self.do(send, timeout_s)
        return [await c.fetchall() if c.description else [] for c in cursors]

    async def do(self, work: Callable[[], Awaitable[object]], timeout_s: float) -> None:
        """Do `work` on this connection within `timeout_s`.

        A plan that was prepared before a migration is refused before it does anything. When nothing
        else was done in its transaction, that begins anew; psycopg drops all plans with a ROLLBACK.
        """
        begin, self.begin = self.begin, None
        try:
            await bounded(self, work(), timeout_s)
        except psycopg.errors.FeatureNotSupported:
            if begin is None:
                raise
            await bounded(self, self.execute(b"ROLLBACK"), timeout_s)
            await bounded(self, self.execute(begin), timeout_s)
            await bounded(self, work(), timeout_s)


def pg(conn: Connection) -> PgConnection:
    """Return a connection to Postgres for what is no statement of `store/sql`; raises `Permanent`
    where the store is another.
    """
    if not isinstance(conn, PgConnection):
        raise Permanent("this needs Postgres; the store of this process is another", code=NOT_HERE)
    return conn


NOT_HERE: Final = "NEEDS_POSTGRES"
"""The code of what another store than Postgres does not do."""
_WRONG_SERVER: Final = (
    psycopg.errors.ReadOnlySqlTransaction,  # a standby, in the middle of a fail-over
    psycopg.errors.FeatureNotSupported,  # a plan prepared before a migration
    psycopg.errors.IdleInTransactionSessionTimeout,  # this process stood still meanwhile
)
"""Answers by which this connection, not the statement, is at fault: it is dropped."""
_MANY_TENANTS: Final = frozenset({"claim", "admit_pick", "wake_pick", "orphans", "webhooks_take"})
"""Statements whose rows belong to several tenants: one that cannot be opened costs only itself."""
_RECONNECT_S: Final = 3.0
"""How long one attempt to reconnect goes on; whoever needs a connection starts the next."""
PLANS: Final = (
    "-c jit=off -c plan_cache_mode=force_generic_plan "
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)
"""How statements are planned. Hot ones are index look-ups whatever the statistics say: a plan made
on an empty table must not become a sequential scan of a full one (see `first_statistics`).
"""
_NOTHING: Final[Mapping[str, Any]] = {}
T = TypeVar("T")


class DatabaseUnavailable(Transient):
    """Postgres did not answer in time, or the connection broke; the outcome of a commit may be
    unknown.
    """

    code = "DATABASE_UNAVAILABLE"


class RowsHeld(DatabaseUnavailable):
    """Another transaction held a row for longer than this one waits (`wait_s`)."""


def sqlalchemy_url(database_url: str) -> str:
    """Name the psycopg driver in a plain `postgresql://` URL."""
    scheme, rest = database_url.split("://", 1)
    return f"{scheme.split('+')[0]}+psycopg://{rest}"


@cache
def sql(name: str) -> bytes:
    """Return the statement in `store/sql/<name>.sql`, without its comments."""
    lines = (Path(__file__).parent / "sql" / f"{name}.sql").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")).encode()


def _still_open(conn: PgConnection) -> bool:
    """Tell whether the server has closed a pooled connection, without asking the server.

    An idle connection has nothing to read; one that has carries the server's goodbye.
    """
    if conn.closed:
        return False
    watch = select.poll()
    watch.register(conn.fileno(), select.POLLIN)
    return not watch.poll(0)


class Database:
    """The pool of one process. Open with `async with`.

    With `bound` a connection is used only if row-level security binds its login: one of the owner
    or of a superuser is refused, and so is all work.
    """

    def __init__(
        self,
        url: str,
        config: DatabaseSettings | None = None,
        *,
        name: str = "harness",
        bound: bool = False,
        keyring: Opener | None = None,
    ) -> None:
        self.keyring, self._bound = keyring, bound
        self.config = config or DatabaseSettings()
        self.timeout_s = self.config.timeout_s
        self._pool: AsyncConnectionPool[PgConnection] = AsyncConnectionPool(
            url,
            connection_class=PgConnection,
            configure=self._configure,
            min_size=self.config.pool_min,
            max_size=self.config.pool_max,
            timeout=self.timeout_s,
            open=False,
            max_idle=60.0,
            reconnect_timeout=_RECONNECT_S,
            kwargs={
                "autocommit": True,
                "row_factory": dict_row,
                "prepare_threshold": self.config.prepare_threshold,
                "connect_timeout": max(2, int(self.config.connect_timeout_s)),
                "application_name": name,
                "keepalives_idle": 10,
                "options": f"-c timezone=UTC {PLANS} -c statement_timeout="
                f"{int(self.timeout_s * 1000)} "
                # A process that froze in a transaction lets its rows go before those who wait for
                # them give up.
                f"-c idle_in_transaction_session_timeout={int(self.timeout_s * 500)}",
            },
        )

    async def __aenter__(self) -> Database:
        await self._pool.open(wait=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pool.close(timeout=2.0)

    async def _configure(self, conn: PgConnection) -> None:
        conn.keyring = self.keyring
        if self._bound:
            await self._require_bound(conn)

    async def ready(self, timeout_s: float = 10.0) -> None:
        """Wait until one connection works; raises `DatabaseUnavailable`."""
        try:
            await self._pool.wait(timeout_s)
        except PoolTimeout as error:
            raise DatabaseUnavailable(f"no connection to Postgres in {timeout_s} s") from error

    async def _require_bound(self, conn: PgConnection) -> None:
        """Refuse a new connection whose login may see every tenant; the pool tries again."""
        (row,) = await run_sql(conn, "bound", {}, self.timeout_s)
        if row["bound"]:
            return
        log.error(
            "database.login_not_bound",
            role=row["role"],
            advice="this process needs the login harness_api; run `harness doctor` and see "
            "docs/security.md",
        )
        raise DatabaseUnavailable(f"row-level security does not bind {row['role']}")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection in autocommit mode; broken ones are replaced by the pool.

        Raises `DatabaseUnavailable` for anything that is the database's or the network's fault.
        """
        async with self._lent() as conn:
            yield conn

    @asynccontextmanager
    async def _lent(self) -> AsyncIterator[PgConnection]:
        try:
            with cancel_kept():
                conn = await self._lend()
                try:
                    yield conn
                except _WRONG_SERVER:
                    await conn.close()
                    raise
                finally:
                    await self._pool.putconn(conn)
        except psycopg.errors.LockNotAvailable as error:
            raise RowsHeld(str(error).strip()[:300]) from error
        except (PoolTimeout, psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise DatabaseUnavailable(str(error).strip()[:300]) from error
        except _WRONG_SERVER as error:
            raise DatabaseUnavailable(str(error).strip()[:300]) from error

    async def _lend(self) -> PgConnection:
        """Take a connection that is still open; what a restarted server left behind is dropped."""
        while True:
            conn = await self._pool.getconn()
            if _still_open(conn):
                return conn
            await conn.close()
            await self._pool.putconn(conn)

    async def fetch(self, name: str, params: Mapping[str, Any]) -> list[Row]:
        """Run the SQL file `name` on its own, as one transaction and one round trip.

        A plan that was prepared before a migration is refused before it does anything: once more,
        over a connection that has none.
        """
        try:
            async with self.connection() as conn:
                return await run_sql(conn, name, params, self.timeout_s)
        except DatabaseUnavailable as error:
            if not isinstance(error.__cause__, psycopg.errors.FeatureNotSupported):
                raise
        async with self.connection() as conn:
            return await run_sql(conn, name, params, self.timeout_s)

    async def fetch_one(self, name: str, params: Mapping[str, Any]) -> Row | None:
        """Run the SQL file `name` and return its first row, if any."""
        rows = await self.fetch(name, params)
        return rows[0] if rows else None

    @asynccontextmanager
    async def transaction(self, wait_s: float | None = None) -> AsyncIterator[Connection]:
        """Open a transaction that spans tenants: for workers, the scheduler and start-up only.

        It waits for a row that another holds for `wait_s` at most, and raises `RowsHeld` then.
        """
        begin = "BEGIN" + _waiting(wait_s)
        async with self._lent() as conn, _transaction(conn, begin, self.timeout_s):
            yield conn

    @asynccontextmanager
    async def tenant_transaction(
        self, tenant_id: UUID, wait_s: float | None = None
    ) -> AsyncIterator[Connection]:
        """Open a transaction bound to one tenant: the API's only way to tenant data.

        Row-level security stands behind it: the API's login sees the rows of `app.tenant` and no
        others. The setting comes with BEGIN, in the same round trip, and ends with the transaction.
        `wait_s` is that of `transaction`.
        """
        begin = (
            f"BEGIN; SELECT set_config('app.tenant', '{tenant_id}', true), "
            "set_config('synchronous_commit', 'on', true)" + _waiting(wait_s)
        )
        async with self._lent() as conn, _transaction(conn, begin, self.timeout_s):
            conn.tenant_id = tenant_id
            try:
                yield conn
            finally:
                conn.tenant_id = None


def _waiting(wait_s: float | None) -> str:
    """Bound in a transaction that begins how long it waits for a row."""
    return "" if wait_s is None else f"; SET LOCAL lock_timeout = {int(wait_s * 1000)}"


@asynccontextmanager
async def _transaction(conn: PgConnection, begin: str, timeout_s: float) -> AsyncIterator[None]:
    """BEGIN … COMMIT, each within `timeout_s`. `begin` may hold more than one statement."""
    await bounded(conn, conn.execute(begin.encode()), timeout_s)
    conn.begin = begin.encode()
    try:
        yield
    except BaseException:
        if not conn.closed:
            await bounded(conn, conn.execute(b"ROLLBACK"), timeout_s)
        raise
    finally:
        conn.begin = None
    await bounded(conn, conn.execute(b"COMMIT"), timeout_s)


async def bounded(conn: PgConnection, work: Awaitable[T], timeout_s: float) -> T:
    """Await `work` on `conn` for at most `timeout_s`; a connection that hangs is cut and reported.

    The socket is shut down under psycopg, which then sees a closed connection at once. Cancelling
    it would make it ask the server to cancel first, and wait for that: 10 s more in a black hole.
    """
    was_cut = False

    def cut() -> None:
        nonlocal was_cut
        was_cut = True
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(conn.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)

    timer = asyncio.get_running_loop().call_later(timeout_s, cut)
    try:
        return await work
    except psycopg.Error as error:
        without_values(error)
        if was_cut:
            raise DatabaseUnavailable(f"Postgres gave no answer in {timeout_s} s") from error
        raise
    finally:
        timer.cancel()


async def run_together(
    conn: Connection, statements: Sequence[Statement], timeout_s: float
) -> list[list[Row]]:
    """Run several SQL files in order in one round trip; each sees what those before it did."""
    results = await conn.run(statements, timeout_s)
    for rows, (name, params) in zip(results, statements, strict=True):
        await open_rows(conn, rows, timeout_s, name=name, params=params)
    return results


async def run_sql(
    conn: Connection, name: str, params: Mapping[str, Any], timeout_s: float
) -> list[Row]:
    """Run the SQL file `name` on `conn`."""
    (rows,) = await run_together(conn, [(name, params)], timeout_s)
    return rows


async def open_rows(
    conn: Connection,
    rows: list[Row],
    timeout_s: float,
    *,
    name: str = "",
    params: Mapping[str, Any] = _NOTHING,
) -> None:
    """Open what is encrypted in rows, in place; almost always there is nothing.

    The tenant is that of the row, of the statement's parameters, or of the transaction.
    """
    many = name in _MANY_TENANTS
    if not (rows and (many or has_sealed(rows))):
        return
    if conn.keyring is None:
        if has_sealed(rows):
            raise KeyMissing("this process reads encrypted rows and was given no keyring")
        return
    tenant_id = params.get("tenant_id") or conn.tenant_id
    await conn.keyring.open_rows(conn, rows, tenant_id, timeout_s, many_tenants=many)
