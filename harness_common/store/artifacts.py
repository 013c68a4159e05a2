"""Artifacts: named bytes of a tenant, kept by content and referenced by id.

Of a tenant that has its bodies encrypted, what is kept is ciphertext under its own digest; the
digest of the plain bytes is then in `sealed`, encrypted too, since it would confirm a guess.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final
from uuid import UUID

from harness_common.contracts.blob import Blobs
from harness_common.core.errors import LostOwnership, NotFound
from harness_common.core.ids import decode, encode
from harness_common.store import sealed
from harness_common.store.connection import Row
from harness_common.store.db import Database
from harness_common.store.keyring import keyring_of, writing_key_of

_PLACE: Final = "artifact"
_ASIDE_BYTES: Final = 1024 * 1024
"""From here on digests and encryption go to a thread, so that they hold up nobody."""


async def save_artifact(
    db: Database,
    blobs: Blobs,
    tenant_id: UUID,
    run_id: UUID | None,
    *,
    name: str,
    media_type: str,
    data: bytes,
) -> str:
    """Keep bytes and return the artifact's id (`art_…`); raises `LostOwnership` when the run is
    gone: a process that was cut off must not leave a file of what was erased meanwhile. The bytes
    are noted before they are kept, so that those of a process that dies in between are found.
    """
    key = await writing_key_of(db, tenant_id)
    kept, digest = data, None
    if key is not None:
        digest = key.seal("t", hashlib.sha256(data).hexdigest())
        if len(data) < _ASIDE_BYTES:
            kept = key.seal_bytes(data, _PLACE)
        else:
            kept = await asyncio.to_thread(key.seal_bytes, data, _PLACE)
    noted = await _digest(kept)
    await db.fetch("blob_note", {"tenant_id": tenant_id, "sha256": noted})
    row = await db.fetch_one(
        "artifact_insert",
        {
            "tenant_id": tenant_id,
            "run_id": run_id,
            "name": name,
            "media_type": media_type,
            "sha256": await blobs.put(kept),
            "size_bytes": len(data),
            "sealed": digest,
        },
    )
    if row is None:
        raise LostOwnership("the run of the artifact is gone")
    return encode("artifact", row["id"])


async def _digest(data: bytes) -> str:
    if len(data) < _ASIDE_BYTES:
        return hashlib.sha256(data).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())


async def read_artifact(
    db: Database, blobs: Blobs, tenant_id: UUID, artifact_id: str
) -> tuple[dict[str, Any], bytes]:
    """Return the row and the bytes of an artifact; raises `NotFound` for one that this tenant does
    not have.
    """
    row = await db.fetch_one(
        "artifact_read", {"tenant_id": tenant_id, "id": decode("artifact", artifact_id)}
    )
    if row is None:
        raise NotFound(f"no artifact {artifact_id}", field="artifact_id", value=artifact_id)
    return row, await read_bytes(db, blobs, tenant_id, row)


async def read_bytes(db: Database, blobs: Blobs, tenant_id: UUID, row: Row) -> bytes:
    """Return the plain bytes of an artifact's row; raises `FileNotFoundError`."""
    kept = await blobs.get(row["sha256"])
    if row["sealed"] is None:
        return kept
    version = sealed.version_of_bytes(kept)
    async with db.tenant_transaction(tenant_id) as conn:
        wanted = [] if version is None else [version]
        keys = await keyring_of(conn).keys(conn, tenant_id, wanted, db.timeout_s)
    if len(kept) < _ASIDE_BYTES:
        return sealed.open_bytes(keys, kept, _PLACE)
    return await asyncio.to_thread(sealed.open_bytes, keys, kept, _PLACE)


def plain_digest(row: Row) -> str:
    """Return the SHA-256 of an artifact's plain bytes."""
    digest: str = row["sealed"] or row["sha256"]
    return digest
