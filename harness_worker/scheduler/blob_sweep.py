"""Deleting the blobs of artifacts that were deleted, once nobody can be about to name them.

The same bytes are kept once for everybody who has them, so a blob goes only if no artifact of any
tenant names it, and if nobody has kept the same bytes within `GRACE_S`: whoever does keeps them
first and names them right after.
"""

from __future__ import annotations

from typing import Final

import structlog

from harness_common.contracts.blob import Blobs
from harness_common.store.db import Row
from harness_worker.scheduler.looper import Shared

GRACE_S: Final = 60.0
BATCH: Final = 200

log = structlog.get_logger()


async def sweep(
    shared: Shared, blobs: Blobs, *, grace_s: float = GRACE_S, limit: int = BATCH
) -> int:
    """Delete some blobs that are due; return how many rows were looked at."""
    rows = await shared.db.fetch("blob_garbage_pick", {"grace_s": grace_s, "limit": limit})
    over: list[Row] = []
    later: list[Row] = []
    for row in rows:
        done = row["named"] or await _gone(blobs, row["sha256"], grace_s)
        (over if done else later).append(row)
    for name, some in (("blob_garbage_drop", over), ("blob_garbage_later", later)):
        if some:
            await shared.db.fetch(name, _keys(some))
    shared.count("blobs_deleted", sum(not row["named"] for row in over))
    return len(rows)


async def _gone(blobs: Blobs, digest: str, grace_s: float) -> bool:
    """Delete one; a store that fails is asked again later."""
    try:
        return await blobs.delete(digest, grace_s)
    except Exception as error:  # noqa: BLE001 - a plugin's store may raise anything
        log.warning("blob.not_deleted", digest=digest, error=repr(error)[:300])
        return False


def _keys(rows: list[Row]) -> dict[str, list[object]]:
    return {"tenants": [r["tenant_id"] for r in rows], "digests": [r["sha256"] for r in rows]}
