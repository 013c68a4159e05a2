"""A broker of its own, beside the Redis of leases: what it forgot is rung again at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisDown

from harness_common.settings import Settings
from harness_worker.scheduler import dispatch as dispatching
from harness_worker.scheduler.dispatch import DispatchLoop
from tests.store.test_scheduler import lead, once


@pytest.fixture
async def broker(valkey) -> AsyncIterator[Redis]:
    """Be the other Redis: another database of the same server, which is wiped alone."""
    client = Redis.from_url(valkey.url.rpartition("/")[0] + "/7")
    await client.flushdb()
    yield client
    await client.flushdb()
    await client.aclose()


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch):
    monkeypatch.setattr(dispatching, "_LOOK_EVERY_S", 0.0)


async def test_a_redis_for_doorbells_alone_is_the_one_whose_loss_is_noticed(play, db, broker):
    shared = await lead(db)
    shared.broker = broker
    run_id = await play.start()
    dispatch = DispatchLoop(shared)
    await once(dispatch, shared)  # leaves its marker
    shared.bell.taken()
    assert await once(dispatch, shared) == 0
    await broker.flushdb()
    assert await once(dispatch, shared) == 1
    assert shared.bell.taken() == [run_id]


class Away:
    """A Redis that cannot be reached."""

    async def set(self, *args: Any, **more: Any) -> bool:
        raise RedisDown("away")


async def test_over_rabbitmq_a_redis_that_is_away_keeps_nothing_from_being_rung(play, db):
    """It holds no queue: its loss says nothing of the doorbells."""
    shared = await lead(db)
    shared.settings = Settings(broker_url="amqp://u:p@one//")
    away: Any = Away()
    shared.redis = away
    run_id = await play.start()
    await play.db.fetch("ring_all", {"term": shared.term})
    assert await once(DispatchLoop(shared), shared) == 1
    assert shared.bell.taken() == [run_id]


async def test_over_rabbitmq_a_connection_that_broke_has_everything_rung_again(play, db):
    """It may have come back without what it was given; a doorbell too many is harmless."""
    shared = await lead(db)
    shared.settings = Settings(broker_url="amqp://u:p@one//")
    run_id = await play.start()
    dispatch = DispatchLoop(shared)
    assert await once(dispatch, shared) == 0
    shared.bell.renewed += 1
    assert await once(dispatch, shared) == 1
    assert shared.bell.taken() == [run_id]
    assert await once(dispatch, shared) == 0
