"""Erasing what a user or a whole tenant has left, a batch at a time. Used by the scheduler's loop
`erase`; requests come in by `store.erasures`.

Every step may be repeated: it deletes what is there. Which tables a tenant has rows in is read from
the schema, so that a new table is not forgotten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from psycopg import sql

from harness_common.core.ids import encode
from harness_common.store.connection import Connection, Row, run_sql, run_together
from harness_common.store.db import Database
from harness_common.store.postgres import pg
from harness_common.store.schema import metadata
from harness_common.store.wipe import Drain, Kind, wipe

PICKED: Final = 200
_KEEP: Final = frozenset({"blob_garbage", "tenants"})
"""What goes after everything else: blobs when they are deleted, the tenant last of all."""
_PARTITIONED: Final = frozenset({"events", "checkpoints"})


@dataclass(slots=True)
class Erasure:
    """A request under way."""

    asked_in: UUID
    id: UUID
    tenant_id: UUID
    user_id: str | None
    phase: str
    asked_by: str
    request_id: str | None
    counts: Counter[str] = field(default_factory=Counter)
    drain: Drain | None = None

    @classmethod
    def of(cls, row: Row) -> Erasure:
        """Read a row of `erasures`."""
        return cls(
            row["tenant_id"], row["id"], row["target_tenant"], row["user_id"], row["phase"],
            row["asked_by"], row["request_id"], Counter(row["counts"]),
        )  # fmt: skip

    @property
    def whole_tenant(self) -> bool:
        """Tell whether all of the tenant goes."""
        return self.user_id is None

    @property
    def whose(self) -> dict[str, UUID | str | None]:
        """What the statements want to know."""
        return {"tenant_id": self.tenant_id, "user_id": self.user_id}


async def live_runs(db: Database, one: Erasure, limit: int) -> list[Row]:
    """Return runs that have to be stopped first."""
    name = "erase_live_tenant" if one.whole_tenant else "erase_live_user"
    return await db.fetch(name, one.whose | {"limit": limit})


async def erase_runs(conn: Connection, one: Erasure, budget: int, timeout_s: float) -> bool:
    """Erase some runs that are over; return whether there were any."""
    if one.drain is not None:
        return await _piece(conn, one, budget, timeout_s)
    name = "erase_pick_tenant" if one.whole_tenant else "erase_pick_user"
    rows = await run_sql(conn, name, one.whose | {"limit": PICKED}, timeout_s)
    take: list[UUID] = []
    total = 0
    for row in rows:
        if take and total + row["rows"] > budget:
            break
        take.append(row["id"])
        total += row["rows"]
    if len(take) == 1 and total > budget:
        one.drain = Drain(one.tenant_id, take[0], Kind.RECORD)
        return True
    await _runs(conn, one, take, timeout_s)
    return bool(rows)


async def _piece(conn: Connection, one: Erasure, budget: int, timeout_s: float) -> bool:
    drain = one.drain
    assert drain is not None
    held = {"tenant_id": drain.tenant_id, "run_id": drain.run_id}
    if not await run_sql(conn, "prune_hold", held, timeout_s):
        one.drain = None
        return True
    gone = await drain.some(conn, budget, timeout_s)
    if gone is None:
        await _runs(conn, one, [drain.run_id], timeout_s)
        one.drain = None
    else:
        one.counts.update(gone)
    return True


async def _runs(conn: Connection, one: Erasure, ids: list[UUID], timeout_s: float) -> None:
    if not ids:
        return
    traces = {
        "tenant_id": one.tenant_id, "ids": ids, "external": [encode("run", i) for i in ids],
    }  # fmt: skip
    (found,) = await run_sql(conn, "erase_traces", traces, timeout_s)
    one.counts.update(found)
    one.counts.update(await wipe(conn, one.tenant_id, ids, Kind.RECORD, timeout_s))


async def erase_user_rest(conn: Connection, one: Erasure, limit: int, timeout_s: float) -> bool:
    """Erase some of what a user has besides runs; return whether there was anything."""
    params = one.whose | {"limit": limit}
    (facts,) = await run_sql(conn, "erase_user_rest", params, timeout_s)
    statements = [("slots_hold", params), ("erase_user_sessions", params)]
    _, (gone,) = await run_together(conn, statements, timeout_s)
    one.counts.update(facts)
    one.counts.update(gone)
    return bool(facts["memories"] or gone["sessions"])


async def erase_tenant_rest(conn: Connection, one: Erasure, limit: int, timeout_s: float) -> bool:
    """Erase some rows of a tenant, of tables that others point to last; return whether there were
    any.
    """
    for table in reversed(metadata.sorted_tables):
        if "tenant_id" not in table.columns or table.name in _KEEP:
            continue
        rows = await _some(conn, table.name, one.tenant_id, limit, timeout_s)
        if rows:
            one.counts[table.name] += rows
            return True
    return False


async def forget_tenant(conn: Connection, tenant_id: UUID, timeout_s: float) -> None:
    """Delete the tenant itself."""
    await _some(conn, "tenants", tenant_id, 1, timeout_s)


async def _some(conn: Connection, table: str, tenant_id: UUID, limit: int, timeout_s: float) -> int:
    """Delete up to `limit` rows of a tenant, with what they alone name; the name of the table is
    our own.
    """
    if table == "artifacts":
        params_of = {"tenant_id": tenant_id, "limit": limit}
        return int((await run_sql(conn, "erase_artifacts", params_of, timeout_s))[0]["rows"])
    if table in _PARTITIONED:  # a place in a file says nothing over partitions; little is left here
        statement = sql.SQL("DELETE FROM {} WHERE tenant_id = %s").format(sql.Identifier(table))
        params: tuple[object, ...] = (tenant_id,)
    else:
        statement = sql.SQL(
            "DELETE FROM {0} WHERE ctid = ANY(ARRAY("
            "SELECT ctid FROM {0} WHERE tenant_id = %s LIMIT %s))"
        ).format(sql.Identifier(table))
        params = (tenant_id, limit)
    postgres = pg(conn)
    cursor = postgres.cursor()
    await postgres.do(lambda: cursor.execute(statement, params), timeout_s)
    return cursor.rowcount
