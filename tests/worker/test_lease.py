"""The lease over a Redis whose answers get lost."""

from __future__ import annotations

from uuid import uuid4

from harness_common.coord.lease import Leases
from harness_common.coord.redis import connect
from harness_common.settings import RedisSettings
from tests.worker.runtime import proxy_of, url_through


async def test_a_take_whose_reply_was_lost_is_ours_when_repeated(valkey, redis):
    """INV8: redis-py repeats the request, and our own lease would shut us out for `lease_s`."""
    # The script is known to the server, so that the first request already takes the lease.
    assert await Leases(redis, "test", 5.0).take(uuid4(), "other:1")
    async with proxy_of(valkey) as proxy:

        def lose_the_first_reply(request: bytes) -> None:
            lost = proxy.accepted == 1 and (b"lease" in request or proxy.mode != "pass")
            proxy.mode = "drop_replies" if lost else "pass"

        proxy.on_request = lose_the_first_reply
        client = connect(url_through(proxy, valkey), RedisSettings(timeout_s=0.5))
        leases, run_id = Leases(client, "test", 5.0), uuid4()
        taken = await leases.take(run_id, "me:1")
        await client.aclose()
        assert proxy.accepted == 2, "no reply was lost"
    assert taken is True
    assert await redis.get(leases.key(run_id)) == b"me:1"
