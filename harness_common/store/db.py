"""The pool of connections to Postgres of one process, and `tenant_transaction`.

Hot statements are files in `store/sql` (see `store.postgres`). The rest is SQLAlchemy Core compiled
to the same connections (`store.core_sql`), so that one pool serves both.
"""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import psycopg
import structlog
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from harness_common.cancelled import cancel_kept
from harness_common.settings import DatabaseSettings
from harness_common.store.connection import (
    Connection,
    DatabaseUnavailable,
    Opener,
    Row,
    RowsHeld,
    run_sql,
)
from harness_common.store.postgres import PgConnection, transaction

log = structlog.get_logger()

_WRONG_SERVER: Final = (
    psycopg.errors.ReadOnlySqlTransaction,  # a standby, in the middle of a fail-over
    psycopg.errors.FeatureNotSupported,  # a plan prepared before a migration
    psycopg.errors.IdleInTransactionSessionTimeout,  # this process stood still meanwhile
)
"""Answers by which this connection, not the statement, is at fault: it is dropped."""
_RECONNECT_S: Final = 3.0
"""How long one attempt to reconnect goes on; whoever needs a connection starts the next."""
PLANS: Final = (
    "-c jit=off -c plan_cache_mode=force_generic_plan "
    "-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off"
)
"""How statements are planned. Hot ones are index look-ups whatever the statistics say: a plan made
on an empty table must not become a sequential scan of a full one (see `first_statistics`).
"""


def sqlalchemy_url(database_url: str) -> str:
    """Name the psycopg driver in a plain `postgresql://` URL."""
    scheme, rest = database_url.split("://", 1)
    return f"{scheme.split('+')[0]}+psycopg://{rest}"


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
        async with self._lent() as conn, transaction(conn, begin, self.timeout_s):
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
        async with self._lent() as conn, transaction(conn, begin, self.timeout_s):
            conn.tenant_id = tenant_id
            try:
                yield conn
            finally:
                conn.tenant_id = None


def _waiting(wait_s: float | None) -> str:
    """Bound in a transaction that begins how long it waits for a row."""
    return "" if wait_s is None else f"; SET LOCAL lock_timeout = {int(wait_s * 1000)}"
