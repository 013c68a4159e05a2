"""Deleting the blobs of artifacts that were deleted, and of those that never came to be since
whoever kept the bytes died, once nobody can be about to name them.

The same bytes are kept once for everybody who has them, so a blob goes only if no artifact of any
tenant names it, and if nobody has kept the same bytes within `GRACE_S`: whoever does keeps them
first and names them right after.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import structlog

from harness_common.contracts.blob import Blobs
from harness_common.store.connection import Row
from harness_worker.scheduler.looper import Shared

GRACE_S: Final = 60.0
BATCH: Final = 200
_AT_MOST_S: Final = 0.5
"""How long one sweep goes on: the leadership must be renewed, and other duties wait."""
_PATIENCE_S: Final = 1.0
"""How long the store is waited for, for the same reason."""

log = structlog.get_logger()


async def sweep(
    shared: Shared, blobs: Blobs, *, grace_s: float = GRACE_S, limit: int = BATCH
) -> int:
    """Delete some blobs that are due, as many as there is time for; return how many rows were
    found, 0 when the store is of no use now.
    """
    rows = await shared.db.fetch("blob_garbage_pick", {"grace_s": grace_s, "limit": limit})
    over: list[Row] = []
    later: list[Row] = []
    works: bool | None = True
    until = time.monotonic() + _AT_MOST_S
    for row in rows:
        done = works = True if row["named"] else await _gone(blobs, row["sha256"], grace_s)
        (over if done else later).append(row)
        if works is None or time.monotonic() > until:
            break
    for name, some in (("blob_garbage_drop", over), ("blob_garbage_later", later)):
        if some:
            await shared.db.fetch(name, _keys(some))
    shared.count("blobs_deleted", sum(not row["named"] for row in over))
    return 0 if works is None else len(rows)


async def _gone(blobs: Blobs, digest: str, grace_s: float) -> bool | None:
    """Delete one, and tell whether it is gone; None when the store failed: it is asked again
    later.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await blobs.delete(digest, grace_s)
    except Exception as error:  # noqa: BLE001 - a plugin's store may raise anything
        log.warning("blob.not_deleted", digest=digest, error=repr(error)[:300])
        return None


def _keys(rows: list[Row]) -> dict[str, list[object]]:
    return {"tenants": [r["tenant_id"] for r in rows], "digests": [r["sha256"] for r in rows]}
