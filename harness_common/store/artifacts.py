"""Artifacts: named bytes of a tenant, kept by content and referenced by id."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from harness_common.contracts.blob import Blobs
from harness_common.core.errors import NotFound
from harness_common.core.ids import decode, encode
from harness_common.store.db import Database


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
    """Keep bytes and return the artifact's id (`art_…`)."""
    digest = await blobs.put(data)
    row = await db.fetch_one(
        "artifact_insert",
        {
            "tenant_id": tenant_id,
            "run_id": run_id,
            "name": name,
            "media_type": media_type,
            "sha256": digest,
            "size_bytes": len(data),
        },
    )
    assert row is not None
    return encode("artifact", row["id"])


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
    return row, await blobs.get(row["sha256"])
