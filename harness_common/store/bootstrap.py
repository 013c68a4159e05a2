"""First start: a tenant `default` and an admin key in a file: `python -m
harness_common.store.bootstrap`.

Run by `harness dev` and by a deployment after the migrations. Safe to repeat and to run from
several processes at once.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from uuid import UUID

from harness_common.core.ids import encode
from harness_common.settings import Settings, settings
from harness_common.store import keys
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.db import Database
from harness_common.store.postgres import pg


async def ensure_tenant(
    conn: Connection, config: Settings, name: str, timeout_s: float, *, operator: bool = False
) -> Row:
    """Return the tenant of a name (`tenant_id`, `made`), making it with its slots when it is
    missing. An `operator`'s keys may see and change what concerns all tenants.
    """
    params = {
        "name": name,
        "operator": operator,
        "max_running": config.scheduler.tenant_max_running,
        "global_max": config.scheduler.max_running,
    }
    return (await run_sql(conn, "tenant_ensure", params, timeout_s))[0]


async def bootstrap(db: Database, config: Settings) -> tuple[Path, bool]:
    """Make what a first start needs; return the admin key's file, and whether the key is new."""
    config.data_dir.mkdir(parents=True, exist_ok=True)
    pepper, path = keys.load_pepper(config), config.data_dir.resolve() / "admin.key"
    async with db.transaction() as conn:
        lock = "SELECT pg_advisory_xact_lock(hashtext('harness.bootstrap'))"
        await pg(conn).do(lambda: pg(conn).execute(lock), db.timeout_s)
        tenant = await ensure_tenant(conn, config, "default", db.timeout_s, operator=True)
        if await _is_valid(conn, tenant["tenant_id"], pepper, path, db.timeout_s):
            return path, False
        new = keys.NewKey("admin", "admin")
        row, text = await keys.insert_key(conn, tenant["tenant_id"], pepper, new, db.timeout_s)
        entry = Entry("api_key.create", encode("api_key", row["id"]), {"name": "admin"})
        record(conn, tenant["tenant_id"], Actor("bootstrap"), entry)
        # Under the lock, so that starts at once make one key. If we die before the commit, the file
        # does not verify and the next start replaces it.
        await asyncio.to_thread(keys.write_private, path, text + "\n")
    return path, True


def _read_key(path: Path) -> tuple[str, str] | None:
    return keys.parse(path.read_text().strip()) if path.exists() else None


async def _is_valid(
    conn: Connection, tenant_id: UUID, pepper: bytes, path: Path, timeout_s: float
) -> bool:
    """Tell whether the file holds a live admin key of this tenant."""
    parsed = await asyncio.to_thread(_read_key, path)
    if parsed is None:
        return False
    rows = await run_sql(conn, "key_find", {"public_id": parsed[0]}, timeout_s)
    return any(
        row["tenant_id"] == tenant_id
        and not row["revoked"]
        and (row["expires_in_s"] is None or row["expires_in_s"] > 0)
        and keys.verify(pepper, *parsed, row["secret_hash"])
        for row in rows
    )


async def _run(config: Settings) -> None:
    async with Database(
        config.database_login("system"), config.database, name="harness-bootstrap"
    ) as db:
        await db.ready()
        path, made = await bootstrap(db, config)
    state = "Made an admin key for the tenant 'default'" if made else "The admin key is unchanged"
    sys.stdout.write(f"{state}: {path}\n")


def main() -> int:
    """Run from the command line."""
    asyncio.run(_run(settings()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
