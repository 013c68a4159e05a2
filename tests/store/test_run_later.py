"""What a transaction runs later goes with its next round trip, and is undone with it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from harness_common.store.connection import run_sql
from harness_common.store.postgres import PgConnection

pytestmark = pytest.mark.anyio


@pytest.fixture
def sent(monkeypatch) -> list[tuple[str, ...]]:
    """The names of what goes to Postgres, a tuple for each round trip; COMMIT among them."""
    trips: list[tuple[str, ...]] = []
    run, commit_all = PgConnection.run, PgConnection.commit_all

    async def seen(self, statements, timeout_s):
        trips.append(tuple(name for name, _ in [*(self.later or []), *statements]))
        return await run(self, statements, timeout_s)

    async def ended(self, timeout_s):
        trips.append((*(name for name, _ in self.later or []), "COMMIT"))
        await commit_all(self, timeout_s)

    monkeypatch.setattr(PgConnection, "run", seen)
    monkeypatch.setattr(PgConnection, "commit_all", ended)
    return trips


def note(tenant_id, target: str) -> dict[str, Any]:
    return {"tenant_id": tenant_id, "actor": "me", "action": "x", "target": target,
            "request_id": None, "detail": "{}"}  # fmt: skip


async def targets(db, tenant_id) -> list[str]:
    async with db.connection() as conn:
        cursor = await conn.execute(
            "SELECT target FROM audit WHERE tenant_id = %s ORDER BY at", (tenant_id,)
        )
        return [row["target"] for row in await cursor.fetchall()]


async def test_it_goes_with_what_comes_next_and_the_rest_with_commit(db, tenant_id, sent):
    async with db.tenant_transaction(tenant_id) as conn:
        conn.run_later("audit_insert", note(tenant_id, "one"))
        conn.run_later("audit_insert", note(tenant_id, "two"))
        rows = await run_sql(conn, "slots_hold", {"tenant_id": tenant_id}, 5)
        assert rows == [{"held": 1}], "the rows are those of what was asked, not of what was kept"
        conn.run_later("audit_insert", note(tenant_id, "three"))
    assert sent == [
        ("audit_insert", "audit_insert", "slots_hold"),
        ("audit_insert", "COMMIT"),
    ]
    assert await targets(db, tenant_id) == ["one", "two", "three"]


async def test_what_goes_with_commit_is_all_or_nothing(db, tenant_id):
    async def both(second):
        async with db.tenant_transaction(tenant_id) as conn:
            conn.run_later("audit_insert", note(tenant_id, "first"))
            conn.run_later("audit_insert", second)

    with pytest.raises(psycopg.errors.NotNullViolation):
        await both(note(tenant_id, "second") | {"action": None})
    assert await targets(db, tenant_id) == []
    await both(note(tenant_id, "second"))  # over the same connection
    assert await targets(db, tenant_id) == ["first", "second"]


async def test_an_error_of_ours_drops_what_was_kept(db, tenant_id, sent):
    async def fails():
        async with db.tenant_transaction(tenant_id) as conn:
            conn.run_later("audit_insert", note(tenant_id, "never"))
            raise KeyError

    with pytest.raises(KeyError):
        await fails()
    async with db.tenant_transaction(tenant_id) as conn:
        await run_sql(conn, "slots_hold", {"tenant_id": tenant_id}, 5)
    assert sent == [("slots_hold",), ("COMMIT",)]
    assert await targets(db, tenant_id) == []


async def test_outside_a_transaction_there_is_no_later(db, tenant_id):
    async with db.connection() as conn:
        with pytest.raises(RuntimeError, match="no transaction"):
            conn.run_later("audit_insert", note(tenant_id, "never"))
