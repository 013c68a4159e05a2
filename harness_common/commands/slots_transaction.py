"""What holds a tenant's slots alone, as forks and interruptions do, takes at most half of this
process' connections.

They go one by one in Postgres, and each that waits for the slots has a connection there. A burst of
one tenant would take all that other requests need. New runs go together instead
(`commands.together`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from uuid import UUID
from weakref import WeakKeyDictionary, WeakValueDictionary

from harness_common.store.connection import Connection, RowsHeld
from harness_common.store.db import Database

_PLACES: Final[WeakKeyDictionary[Database, WeakValueDictionary[UUID, asyncio.Semaphore]]] = (
    WeakKeyDictionary()
)
"""Of each tenant whose slots are wanted just now."""


@asynccontextmanager
async def slots_transaction(db: Database, tenant_id: UUID) -> AsyncIterator[Connection]:
    """Open a transaction of a tenant that will hold its slots, when there is a place for it.

    Raises `RowsHeld` when those before it take longer than a statement may.
    """
    fresh = asyncio.Semaphore(max(1, db.config.pool_max // 2))
    place = _PLACES.setdefault(db, WeakValueDictionary()).setdefault(tenant_id, fresh)
    try:
        async with asyncio.timeout(db.timeout_s):
            await place.acquire()
    except TimeoutError as error:
        raise RowsHeld(
            f"others who hold the slots of the tenant took all of {db.timeout_s:g} s"
        ) from error
    try:
        async with db.tenant_transaction(tenant_id) as conn:
            yield conn
    finally:
        place.release()
