"""API keys: `hk_<public id>_<secret>`, of which only an HMAC-SHA256 under a pepper is stored.

Used by the API's authentication, its key routes and `store.bootstrap`. The secret has 256 random
bits, so that a fast hash is enough; the pepper makes a stolen table useless on its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

from sqlalchemy import select

from harness_common.core.errors import Conflict, Denied, Invalid, NotFound
from harness_common.core.ids import encode
from harness_common.settings import Settings
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import api_keys

_PREFIX: Final = "hk_"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key to be made. `lives_s` counts from now and is used when `expires_at` is None; both
    None: no expiry.
    """

    name: str
    role: str
    scopes: tuple[str, ...] = ()
    expires_at: datetime | None = None
    lives_s: float | None = None
    rotated_from: UUID | None = None


def hash_secret(pepper: bytes, public_id: str, secret: str) -> bytes:
    """Return what is stored of a secret; bound to its public id, so that none can be swapped."""
    return hmac.digest(pepper, f"{public_id}.{secret}".encode(), hashlib.sha256)


def verify(pepper: bytes, public_id: str, secret: str, stored: bytes) -> bool:
    """Compare a secret with what is stored, in constant time."""
    return hmac.compare_digest(hash_secret(pepper, public_id, secret), stored)


def parse(text: str) -> tuple[str, str] | None:
    """Split a key into public id and secret; None when it does not look like one."""
    if not text.isascii() or not text.startswith(_PREFIX) or len(text) > 200:
        return None
    public_id, _, secret = text.removeprefix(_PREFIX).partition("_")
    return (public_id, secret) if public_id and secret else None


def load_pepper(config: Settings) -> bytes:
    """Return the pepper of the settings, or of the file `pepper` in the data folder, which is made
    when missing.

    API processes on several machines need the same one: set `HARNESS_API__KEY_PEPPER` there.
    """
    found = read_pepper(config)
    if found is None:
        path = config.data_dir / "pepper"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(path, secrets.token_urlsafe(32), keep=True)
        found = path.read_bytes().strip()
    return found


def read_pepper(config: Settings) -> bytes | None:
    """Return the pepper as `load_pepper` does; None when it would have to be made."""
    if config.api.key_pepper is not None:
        return config.api.key_pepper.get_secret_value().encode()
    try:
        return (config.data_dir / "pepper").read_bytes().strip()
    except FileNotFoundError:
        return None


def write_private(path: Path, text: str, *, keep: bool = False) -> None:
    """Write a file that only its owner can read, whole or not at all; with `keep` one that is
    there stays.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")  # mode 0600
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if keep:
            with contextlib.suppress(FileExistsError):
                path.hardlink_to(name)
        else:
            Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)


async def find_key(db: Database, public_id: str) -> Row | None:
    """Read the key of a public id, whichever tenant owns it."""
    return await db.fetch_one("key_find", {"public_id": public_id})


async def touch_key(db: Database, tenant_id: UUID, key_id: UUID) -> None:
    """Note that a key is in use, at most once a minute."""
    async with db.tenant_transaction(tenant_id) as conn:
        await run_sql(conn, "key_touch", {"tenant_id": tenant_id, "id": key_id}, db.timeout_s)


async def insert_key(
    conn: Connection, tenant_id: UUID, pepper: bytes, new: NewKey, timeout_s: float
) -> tuple[Row, str]:
    """Add a key within an open transaction; return its row and its text, which is never shown
    again.
    """
    public_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32).replace("_", "-")
    rows = await run_sql(
        conn,
        "key_insert",
        {
            "tenant_id": tenant_id,
            "name": new.name,
            "public_id": public_id,
            "secret_hash": hash_secret(pepper, public_id, secret),
            "role": new.role,
            "scopes": list(new.scopes),
            "expires_at": new.expires_at,
            "lives_s": new.lives_s,
            "rotated_from": new.rotated_from,
        },
        timeout_s,
    )
    return rows[0], f"{_PREFIX}{public_id}_{secret}"


async def create_key(
    db: Database, tenant_id: UUID, pepper: bytes, new: NewKey, actor: Actor, maker: UUID
) -> tuple[Row, str]:
    """Make a key with the key `maker`; raises `Invalid` when it would be born expired, and `Denied`
    when it would outlive its maker.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        row, text = await insert_key(conn, tenant_id, pepper, new, db.timeout_s)
        if row["expires_at"] is not None and row["expires_at"] <= row["now"]:
            raise Invalid("expires_at must be in the future", field="expires_at")
        ends = await _end_of(conn, tenant_id, maker, db.timeout_s)
        if ends is not None and (row["expires_at"] is None or row["expires_at"] > ends):
            raise Denied(
                f"a key cannot make one that outlives it: set expires_at, to {ends.isoformat()} "
                "at the latest",
                code="KEY_TOO_POWERFUL",
                field="expires_at",
            )
        entry = Entry(
            "api_key.create",
            encode("api_key", row["id"]),
            {"name": new.name, "role": new.role, "scopes": list(new.scopes)},
        )
        record(conn, tenant_id, actor, entry)
        return row, text


async def rotate_key(
    db: Database,
    tenant_id: UUID,
    pepper: bytes,
    key_id: UUID,
    overlap_s: float,
    actor: Actor,
    maker: UUID,
) -> tuple[Row, str]:
    """Make a successor with the same rights; the old key lives on for at most `overlap_s`. The
    successor lives as long as the old one was to, but does not outlive the key `maker`.

    Raises `NotFound`, and `Conflict` for a key that is dead or already has a live successor.
    """
    async with db.tenant_transaction(tenant_id) as conn:
        old = await _lock_key(conn, tenant_id, key_id, db.timeout_s)
        if not is_live(old, old["now"]):
            raise Conflict("the key is revoked or expired; create a new one", code="KEY_NOT_LIVE")
        if old["has_successor"]:
            raise Conflict(
                "the key was rotated already; rotate or revoke its successor",
                code="KEY_ALREADY_ROTATED",
            )
        new = NewKey(
            old["name"],
            old["role"],
            tuple(old["scopes"]),
            expires_at=_sooner(
                old["expires_at"] and old["now"] + (old["expires_at"] - old["created_at"]),
                await _end_of(conn, tenant_id, maker, db.timeout_s),
            ),
            rotated_from=key_id,
        )
        row, text = await insert_key(conn, tenant_id, pepper, new, db.timeout_s)
        await run_sql(
            conn,
            "key_expire",
            {"tenant_id": tenant_id, "id": key_id, "overlap_s": overlap_s},
            db.timeout_s,
        )
        entry = Entry(
            "api_key.rotate",
            encode("api_key", key_id),
            {"successor": encode("api_key", row["id"]), "overlap_s": overlap_s},
        )
        record(conn, tenant_id, actor, entry)
        return row, text


async def revoke_key(db: Database, tenant_id: UUID, key_id: UUID, actor: Actor) -> Row:
    """End a key at once and return its row; safe to repeat. Raises `NotFound`."""
    async with db.tenant_transaction(tenant_id) as conn:
        row = await _lock_key(conn, tenant_id, key_id, db.timeout_s)
        if row["revoked_at"] is None:
            await run_sql(conn, "key_revoke", {"tenant_id": tenant_id, "id": key_id}, db.timeout_s)
            entry = Entry("api_key.revoke", encode("api_key", key_id), {"name": row["name"]})
            record(conn, tenant_id, actor, entry)
        return row


def is_live(row: Row, now: datetime) -> bool:
    """Tell whether a key is neither revoked nor expired at `now`."""
    return row["revoked_at"] is None and (row["expires_at"] is None or row["expires_at"] > now)


async def read_key(db: Database, tenant_id: UUID, key_id: UUID) -> Row:
    """Read a key of a tenant; raises `NotFound`."""
    query = select(api_keys).where(api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id)
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_core(conn, query, db.timeout_s)
    if not rows:
        raise _no_key(key_id)
    return rows[0]


async def list_keys(db: Database, tenant_id: UUID, *, before: UUID | None, limit: int) -> list[Row]:
    """Return keys, newest first, of those older than `before`."""
    query = select(api_keys).where(api_keys.c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(api_keys.c.id < before)
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query.order_by(api_keys.c.id.desc()).limit(limit), db.timeout_s)


async def _end_of(
    conn: Connection, tenant_id: UUID, key_id: UUID, timeout_s: float
) -> datetime | None:
    """Return when a key expires; None: never."""
    query = select(api_keys.c.expires_at).where(
        api_keys.c.tenant_id == tenant_id, api_keys.c.id == key_id
    )
    rows = await run_core(conn, query, timeout_s)
    ends: datetime | None = rows[0]["expires_at"] if rows else None
    return ends


def _sooner(a: datetime | None, b: datetime | None) -> datetime | None:
    return min((at for at in (a, b) if at is not None), default=None)


async def _lock_key(conn: Connection, tenant_id: UUID, key_id: UUID, timeout_s: float) -> Row:
    rows = await run_sql(conn, "key_lock", {"tenant_id": tenant_id, "id": key_id}, timeout_s)
    if not rows:
        raise _no_key(key_id)
    return rows[0]


def _no_key(key_id: UUID) -> NotFound:
    shown = encode("api_key", key_id)
    return NotFound(f"no API key {shown}", field="key_id", value=shown)
