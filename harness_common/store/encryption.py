"""Whether a tenant's bodies are encrypted, and moving data keys to another key-encryption key.

Used by the API. What is written already stays as it is, and readable.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import func, select, update

from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.keyring import Keyring
from harness_common.store.schema import tenant_keys, tenants


async def read_encryption(db: Database, tenant_id: UUID) -> Row:
    """Return `encrypted_since`, and the newest data key's `version`, `kek_id`, `created_at` and
    `rewrapped_at`, null while the tenant has none; raises `NotFound`.
    """
    k = tenant_keys.c
    query = (
        select(tenants.c.encrypted_since, k.version, k.kek_id, k.created_at, k.rewrapped_at)
        .outerjoin(tenant_keys, k.tenant_id == tenants.c.tenant_id)
        .where(tenants.c.tenant_id == tenant_id)
        .order_by(k.version.desc())
        .limit(1)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        raise NotFound("no such tenant")
    return rows[0]


async def set_encryption(
    db: Database, keyring: Keyring, tenant_id: UUID, *, on: bool, new_key: bool, actor: Actor
) -> None:
    """Turn the encryption of bodies on or off for what is written from now on; with `new_key` that
    (and new secrets) is written with a fresh data key. Other processes follow within
    `keyring.FRESH_S`. Raises `KeyMissing`.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        if on or new_key:
            await keyring.newest(conn, tenant_id, db.timeout_s)
        if new_key:
            await keyring.replace(conn, tenant_id, db.timeout_s)
        since = func.coalesce(tenants.c.encrypted_since, func.clock_timestamp()) if on else None
        change = (
            update(tenants).where(tenants.c.tenant_id == tenant_id).values(encrypted_since=since)
        )
        await run_core(conn, change, db.timeout_s)
        detail = {"on": on} | ({"new_key": True} if new_key else {})
        entry = Entry("tenant.set_encryption", encode("tenant", tenant_id), detail)
        record(conn, tenant_id, actor, entry)
    keyring.forget(tenant_id)


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Which key-encryption keys wrap how many data keys."""

    current: str | None
    known: tuple[str, ...]
    """Those that this process has."""
    data_keys: dict[str, int] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Count the data keys that the current one does not wrap yet, of those within reach."""
        return sum(n for k, n in self.data_keys.items() if k in self.known and k != self.current)

    @property
    def out_of_reach(self) -> int:
        """Count the data keys whose key-encryption key this process does not have."""
        return sum(n for k, n in self.data_keys.items() if k not in self.known)


async def read_wrapping(db: Database, keyring: Keyring, tenant_id: UUID) -> Wrapping:
    """Count the data keys of all tenants by what wraps them; `tenant_id` runs the platform."""
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "keys_by_kek", {}, db.timeout_s)
    counts = {row["kek_id"]: row["data_keys"] for row in rows}
    return Wrapping(keyring.keks.current, tuple(keyring.keks.ciphers), counts)


async def rewrap(
    db: Database, keyring: Keyring, tenant_id: UUID, *, limit: int, actor: Actor
) -> int:
    """Wrap up to `limit` data keys by the current key-encryption key; return how many there were.

    Safe to repeat and to interrupt: each batch is a transaction, and a key is always whole under
    one of the two. The audit row is the operator's (`tenant_id`). Raises `KeyMissing`,
    `CannotDecrypt`.
    """
    current = keyring.keks.require_current()
    async with db.tenant_transaction(tenant_id) as conn:
        wanted = {"current": current, "known": list(keyring.keks.ciphers), "limit": limit}
        rows = await run_sql(conn, "keys_rewrap_pick", wanted, db.timeout_s)
        for row in rows:
            key = {"tenant_id": row["tenant_id"], "version": row["version"], "was": row["kek_id"]}
            await run_sql(conn, "key_rewrap", key | keyring.rewrapped(row), db.timeout_s)
    if rows:
        async with db.tenant_transaction(tenant_id) as conn:
            was = dict(Counter(row["kek_id"] for row in rows))
            detail = {"kek": current, "rewrapped": len(rows), "from": was}
            entry = Entry("platform.rewrap_keys", current, detail)
            record(conn, tenant_id, actor, entry)
    return len(rows)
