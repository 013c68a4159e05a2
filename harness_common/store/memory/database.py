"""The in-memory store as a `Database`: transactions one after the other, each all or nothing.

Who has a transaction open holds the whole store; others wait, at most as long as a statement may
take. A statement runs in an instant, so that a claim, a commit or an intent is as atomic as in
Postgres, and gives way to other tasks before it, as a round trip would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Self
from uuid import UUID

from harness_common.core.errors import Permanent
from harness_common.settings import DatabaseSettings
from harness_common.store.connection import Connection, DatabaseUnavailable, Opener, Row, Statement
from harness_common.store.db import Database
from harness_common.store.memory.statements import STATEMENTS, Do
from harness_common.store.memory.tables import Clock, Tables
from harness_common.store.postgres import NOT_HERE


def wall_clock() -> datetime:
    """Return the time of this machine, which is the time of a store that lives in it."""
    return datetime.now(UTC)


class MemoryConnection:
    """A connection to tables in this process; in a transaction while it holds the store."""

    def __init__(self, store: MemoryDatabase) -> None:
        self._store = store
        self.keyring: Opener | None = None
        self.tenant_id: UUID | None = None
        self.in_transaction = False

    async def run(self, statements: Sequence[Statement], timeout_s: float) -> list[list[Row]]:
        """Run statements as `Connection.run` says."""
        await asyncio.sleep(0)
        if self.in_transaction:
            return self._run(statements)
        async with self._store.hold(timeout_s):
            return self._run(statements)

    def run_later(self, name: str, params: Mapping[str, Any]) -> None:
        """Run a statement at once: here is no round trip to save."""
        if not self.in_transaction:
            raise RuntimeError("no transaction is open that could take statements later")
        self._run([(name, params)])

    def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        tables = self._store.tables
        return [
            [dict(row) for row in _statement(name)(tables, params)] for name, params in statements
        ]


class MemoryDatabase(Database):
    """A store that lives as long as this object. `clock` is the time that all rules go by."""

    def __init__(
        self, config: DatabaseSettings | None = None, *, clock: Clock = wall_clock
    ) -> None:
        self.config = config or DatabaseSettings()
        self.timeout_s = self.config.timeout_s
        self.keyring = None
        self.tables = Tables(clock)
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[object] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing: who holds the object holds the store."""

    async def ready(self, timeout_s: float = 10.0) -> None:
        """Do nothing: it always is."""

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection; each of its statements is a transaction."""
        yield MemoryConnection(self)

    @asynccontextmanager
    async def transaction(self, wait_s: float | None = None) -> AsyncIterator[Connection]:
        """Open a transaction that spans tenants. Nobody holds a row: who holds, holds the store."""
        del wait_s
        async with self.hold(self.timeout_s):
            conn = MemoryConnection(self)
            conn.in_transaction = True
            yield conn

    @asynccontextmanager
    async def tenant_transaction(
        self, tenant_id: UUID, wait_s: float | None = None
    ) -> AsyncIterator[Connection]:
        """Open a transaction bound to one tenant; every statement compares the tenant itself."""
        async with self.transaction(wait_s) as conn:
            conn.tenant_id = tenant_id
            yield conn

    @asynccontextmanager
    async def hold(self, timeout_s: float) -> AsyncIterator[None]:
        """Hold the store: all that is changed meanwhile is kept together, or undone together."""
        if self._holder is asyncio.current_task():
            raise RuntimeError("a statement outside the transaction that its own task has open")
        try:
            async with asyncio.timeout(timeout_s):
                await self._lock.acquire()
        except TimeoutError as error:
            raise DatabaseUnavailable(f"the store was held for {timeout_s} s") from error
        self._holder = asyncio.current_task()
        journal = self.tables.journal
        try:
            yield
        except BaseException:
            journal.undo(0)
            raise
        else:
            journal.keep()
        finally:
            self._holder = None
            self._lock.release()


def _statement(name: str) -> Do:
    found = STATEMENTS.get(name)
    if found is None:
        raise Permanent(
            f"the in-memory store does not have {name}; use Postgres (`harness dev` starts one)",
            code=NOT_HERE,
            statement=name,
        )
    return found
