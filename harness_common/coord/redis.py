"""Redis connections with our own bounds: short timeouts, no hidden retries, a name that the
scheduler can see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedConnection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from harness_common.cancelled import cancel_kept
from harness_common.redis_url import is_sentinel, parse_sentinel
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


class _Managed(_Ours, SentinelManagedConnection):
    """Asks Sentinel for the primary each time it connects."""


def connect(
    url: str, config: RedisSettings, *, name: str | None = None, max_connections: int = 64
) -> Redis:
    """Build a client. Its calls raise `RedisFault` within `config.timeout_s`; replaying any of ours
    is harmless.
    """
    bounds: dict[str, Any] = {
        "client_name": name,
        "socket_timeout": config.timeout_s,
        "socket_connect_timeout": config.timeout_s,
        "socket_keepalive": True,
        "health_check_interval": 25,
        "max_connections": max_connections,
        "retry": Retry(NoBackoff(), 1),
    }
    if is_sentinel(url):
        return _primary(url, config, bounds)
    client = Redis.from_url(url, **bounds)
    pool = client.connection_pool
    ours: dict[type[AbstractConnection], type[AbstractConnection]]
    ours = {Connection: _Plain, SSLConnection: _Tls}
    pool.connection_class = ours.get(pool.connection_class, pool.connection_class)
    return client


def _primary(url: str, config: RedisSettings, bounds: dict[str, Any]) -> Redis:
    """Build a client of whatever Sentinel calls the primary; after a fail-over it is another."""
    found = parse_sentinel(url)
    # Several are asked one after the other, and all of it has to fit into one call's time.
    each_s = max(0.2, config.timeout_s / (len(found.nodes) + 1))
    untyped: Any = Sentinel
    sentinel = untyped(
        list(found.nodes),
        sentinel_kwargs={
            "socket_timeout": each_s,
            "socket_connect_timeout": each_s,
            "retry": Retry(NoBackoff(), 0),
            **found.sentinel_login,
        },
    )
    client: Redis = sentinel.master_for(
        found.primary, connection_class=_Managed, **found.login, **bounds
    )
    return client
