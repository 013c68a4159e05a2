"""Redis connections with our own bounds: short timeouts, no hidden retries, a name that the
scheduler can see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from harness_common.cancelled import cancel_kept
from harness_common.settings import RedisSettings

RedisFault = (RedisError, OSError, TimeoutError)
"""Everything that means "Redis did not do it". Nothing in Redis is needed for safety."""


class _Ours(AbstractConnection):
    """Keeps a cancel that comes while it writes, and makes a `RedisFault` of what uvloop raises for
    a write to a transport that has just closed (a bare RuntimeError, where asyncio only drops the
    bytes).
    """

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        try:
            with cancel_kept():
                await super().send_packed_command(command, check_health)
        except asyncio.CancelledError:
            await self.disconnect(nowait=True)  # the answer would be taken for the next command's
            raise

    async def _send_packed_command(self, command: Iterable[bytes]) -> None:
        try:
            await super()._send_packed_command(command)
        except RuntimeError as error:
            raise ConnectionResetError(str(error)) from error


class _Plain(_Ours, Connection):
    pass


class _Tls(_Ours, SSLConnection):
    pass


def connect(
    url: str, config: RedisSettings, *, name: str | None = None, max_connections: int = 64
) -> Redis:
    """Build a client. Its calls raise `RedisFault` within `config.timeout_s`; replaying any of ours
    is harmless.
    """
    client = Redis.from_url(
        url,
        client_name=name,
        socket_timeout=config.timeout_s,
        socket_connect_timeout=config.timeout_s,
        socket_keepalive=True,
        health_check_interval=25,
        max_connections=max_connections,
        retry=Retry(NoBackoff(), 1),
    )
    pool = client.connection_pool
    ours: dict[type[AbstractConnection], type[AbstractConnection]]
    ours = {Connection: _Plain, SSLConnection: _Tls}
    pool.connection_class = ours.get(pool.connection_class, pool.connection_class)
    return client
