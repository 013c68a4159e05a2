"""A scheduler that does nothing but retention, as a process of its own: for `prune_load.py`."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from harness_common.broker.app import app
from harness_common.broker.publish import Bell
from harness_common.coord.lease import Leases
from harness_common.coord.redis import connect
from harness_common.settings import settings
from harness_common.store.db import Database
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.retention import RetentionLoop
from harness_worker.scheduler.service import look_once


async def main() -> None:
    """Do one batch after another, with the pauses that the loop asks for."""
    config = settings()
    redis = connect(config.require_redis_url(), config.redis, name="bench-retention")
    async with Database(config.database_login("system"), config.database, name="retention") as db:
        await db.ready()
        term = await Leadership(db, uuid4(), "bench", 3600).seek()
        assert term is not None
        leases = Leases(redis, config.redis.prefix, config.worker.lease_s)
        shared = Shared(config, db, redis, leases, Bell(app), term)
        loop, look = RetentionLoop(shared), await look_once(shared)
        while True:
            await loop.run_once(look)
            pause_s = shared.again_in_s
            await asyncio.sleep(0.2 if pause_s is None else pause_s)
            shared.again_in_s = None


if __name__ == "__main__":
    asyncio.run(main())
