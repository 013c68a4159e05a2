"""A connection to Postgres: sends the statements of `store/sql`, each within a time of our own.

They go through psycopg and are prepared; several go in one round trip. Every one has a timeout on
our side (INV11): TCP keepalive does not fire through a proxy that swallows packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow
from psycopg.types.json import set_json_dumps, set_json_loads

from harness_common.core.errors import Permanent
from harness_common.store import json_codec
from harness_common.store.connection import Connection, DatabaseUnavailable, Opener, Row, Statement
from harness_common.store.pg_errors import without_values

set_json_dumps(json_codec.dumps)
set_json_loads(json_codec.loads)

NOT_HERE: Final = "NEEDS_POSTGRES"
"""The code of what another store than Postgres does not do."""
T = TypeVar("T")


class PgConnection(psycopg.AsyncConnection[DictRow]):
    """A connection that knows who opens what is encrypted, and the tenant it is bound to now."""

    keyring: Opener | None = None
    tenant_id: UUID | None = None
    begin: bytes | None = None
    """How the transaction under way began, while nothing has been done in it."""
    later: list[Statement] | None = None
    """What goes with the next round trip of the transaction under way, if one is."""

    async def run(self, statements: Sequence[Statement], timeout_s: float) -> list[list[Row]]:
        """Run statements as `Connection.run` says; several go through psycopg's pipeline."""
        before = self._take_later()
        sent = [*before, *statements]
        cursors = [self.cursor(binary=True) for _ in sent]

        async def send() -> None:
            if len(sent) == 1:
                name, params = sent[0]
                await cursors[0].execute(sql(name), params)
                return
            async with self.pipeline():
                for cursor, (name, params) in zip(cursors, sent, strict=True):
                    await cursor.execute(sql(name), params)

        await self._do(send, timeout_s)
        return [await c.fetchall() if c.description else [] for c in cursors[len(before) :]]

    def run_later(self, name: str, params: Mapping[str, Any]) -> None:
        """Keep a statement as `Connection.run_later` says."""
        if self.later is None:
            raise RuntimeError("no transaction is open that could take statements later")
        self.later.append((name, params))

    def _take_later(self) -> list[Statement]:
        if not self.later:
            return []
        taken, self.later = self.later, []
        return taken

    async def do(self, work: Callable[[], Awaitable[object]], timeout_s: float) -> None:
        """Do `work`, which is no statement of `store/sql`, within `timeout_s`."""
        if self.later:
            await self.run([], timeout_s)
        await self._do(work, timeout_s)

    async def _do(self, work: Callable[[], Awaitable[object]], timeout_s: float) -> None:
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

    async def commit_all(self, timeout_s: float) -> None:
        """End the transaction under way with what was kept for later, in one round trip."""
        kept = self._take_later()

        async def send() -> None:
            async with self.pipeline():
                for name, params in kept:
                    await self.execute(sql(name), params, binary=True)
                await self.execute(b"COMMIT")

        await bounded(self, send() if kept else self.execute(b"COMMIT"), timeout_s)


@cache
def sql(name: str) -> bytes:
    """Return the statement in `store/sql/<name>.sql`, without its comments."""
    lines = (Path(__file__).parent / "sql" / f"{name}.sql").read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("--")).encode()


def pg(conn: Connection) -> PgConnection:
    """Return a connection to Postgres for what is no statement of `store/sql`; raises `Permanent`
    where the store is another.
    """
    if not isinstance(conn, PgConnection):
        raise Permanent("this needs Postgres; the store of this process is another", code=NOT_HERE)
    return conn


@asynccontextmanager
async def transaction(conn: PgConnection, begin: str, timeout_s: float) -> AsyncIterator[None]:
    """Open a transaction: BEGIN … COMMIT, each within `timeout_s`; `begin` may be more than one
    statement.
    """
    await bounded(conn, conn.execute(begin.encode()), timeout_s)
    conn.begin, conn.later = begin.encode(), []
    try:
        yield
        await conn.commit_all(timeout_s)
    except BaseException:
        if not conn.closed and conn.info.transaction_status is not TransactionStatus.IDLE:
            await bounded(conn, conn.execute(b"ROLLBACK"), timeout_s)
        raise
    finally:
        conn.begin = conn.later = None


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
