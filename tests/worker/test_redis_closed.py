"""A connection to Redis that has just closed, on the event loop that the API runs on."""

from __future__ import annotations

import pytest
import uvloop

from harness_common.coord.redis import RedisFault, connect
from harness_common.settings import RedisSettings


def test_a_write_to_a_closed_connection_is_a_redis_fault(valkey):
    """uvloop raises RuntimeError there, which answered a cancel with 500 and lost a doorbell."""

    async def use() -> None:
        client = connect(valkey.url, RedisSettings(timeout_s=1.0))
        pool = client.connection_pool
        held = await pool.get_connection()
        await held.connect()
        assert held._writer is not None
        held._writer.transport.abort()
        with pytest.raises(RedisFault):
            await held.send_command("PING")
        await pool.release(held)
        assert await client.ping(), "the next use connects again"
        await client.aclose()

    uvloop.run(use())
