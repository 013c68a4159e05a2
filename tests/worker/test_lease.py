import asyncio
from uuid import uuid4

from harness_common.coord.lease import Leases
from harness_common.coord.redis import connect
from harness_common.settings import RedisSettings


async def test_take_whose_reply_was_lost():
    """SET NX arrives, its reply does not; redis-py repeats it (Retry 1): our own lease shuts us out for lease_s."""
    up = []

    async def handle(r, w):
        ur, uw = await asyncio.open_connection("127.0.0.1", 6399)
        n = len(up)
        up.append(1)
        st = {"drop": False}

        async def c2s():
            while d := await r.read(65536):
                if b"lease" in d and n == 0:
                    st["drop"] = True
                uw.write(d)
                await uw.drain()

        async def s2c():
            while d := await ur.read(65536):
                if st["drop"]:
                    w.close()
                    return
                w.write(d)
                await w.drain()

        await asyncio.gather(c2s(), s2c(), return_exceptions=True)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    redis = connect(f"redis://127.0.0.1:{port}/8", RedisSettings())
    leases = Leases(redis, "review" + uuid4().hex[:6], 5.0)
    got = await leases.take(uuid4(), "me:1")
    await redis.aclose()
    server.close()
    assert got is True, "lease refused: held by nobody but ourselves, and never released"
