"""The seam of the store: what runs the statements of `store/sql` by their names, and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import UUID

from harness_common.core.errors import Transient
from harness_common.crypto.aead import KeyMissing
from harness_common.store.sealed import has_sealed

_MANY_TENANTS: Final = frozenset({"claim", "admit_pick", "wake_pick", "orphans", "webhooks_take"})
"""Statements whose rows belong to several tenants: one that cannot be opened costs only itself."""
_NOTHING: Final[Mapping[str, Any]] = {}
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

    def run_later(self, name: str, params: Mapping[str, Any]) -> None:
        """Run a statement of the transaction that is open, whose rows nobody needs, with what comes
        next in it: in the round trip of the next statements, or of COMMIT.
        """
        ...


class DatabaseUnavailable(Transient):
    """Postgres did not answer in time, or the connection broke; the outcome of a commit may be
    unknown.
    """

    code = "DATABASE_UNAVAILABLE"


class RowsHeld(DatabaseUnavailable):
    """Another transaction held a row for longer than this one waits (`wait_s`)."""


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
