"""What a worker process is connected to: the ends that may be others elsewhere.

`open_ends` connects to Postgres, Redis and the broker; `harness_worker.local` has them all within
one process. See docs/ends.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from redis.asyncio import Redis

from harness_common.broker.publish import Rings
from harness_common.coord.channel import Channel
from harness_common.coord.lease import Leases
from harness_common.coord.live import LiveStream
from harness_common.coord.redis import connect
from harness_common.core.liveness import heartbeat_timeout_s
from harness_common.settings import Settings
from harness_common.store.db import Database
from harness_common.store.keyring import Keyring, load_keks
from harness_common.store.schema_check import wait_for_schema


@dataclass(frozen=True, slots=True)
class Ends:
    """The store, the bus and the doorbell of one process."""

    db: Database
    heart: Database
    """A connection of its own: busy steps must not make the process look dead."""
    redis: Redis | None
    leases: Leases
    channel: Channel
    live: LiveStream
    bell: Rings


def connection_name(worker: UUID) -> str:
    """Name the Redis connection by which the scheduler sees that a process lives."""
    return f"harness-worker-{worker.hex}"


async def open_ends(settings: Settings, bell: Rings, worker: UUID, name: str) -> Ends:
    """Connect to everything; waits for Postgres, does not need Redis to be there yet."""
    url, keyring = settings.database_login("system"), Keyring(load_keks(settings))
    db = Database(url, settings.database, name=f"harness {name}", keyring=keyring)
    await db.__aenter__()
    await db.ready(60.0)
    await wait_for_schema(db)
    limit_s = heartbeat_timeout_s(settings.database.timeout_s, settings.worker.lease_s)
    one = settings.database.model_copy(update={"pool_min": 1, "pool_max": 1, "timeout_s": limit_s})
    heart = Database(url, one, name=f"harness {name} heartbeat")
    await heart.__aenter__()
    redis = connect(
        settings.require_redis_url(),
        settings.redis,
        name=connection_name(worker),
        max_connections=256,
    )
    prefix = settings.redis.prefix
    return Ends(
        db=db,
        heart=heart,
        redis=redis,
        leases=Leases(redis, prefix, settings.worker.lease_s),
        channel=Channel(redis, prefix),
        live=LiveStream(redis, prefix),
        bell=bell,
    )
