"""Redis connections with our own bounds: short timeouts, no hidden retries, a name that the
scheduler can see.
"""

from __future__ import annotations

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from harness_common.settings import RedisSettings

RedisFault = (RedisError, OSError, TimeoutError)
"""Everything that means "Redis did not do it". Nothing in Redis is needed for safety."""


def connect(
    url: str, config: RedisSettings, *, name: str | None = None, max_connections: int = 64
) -> Redis:
    """Build a client. Its calls raise `RedisFault` within `config.timeout_s`; replaying any of ours
    is harmless.
    """
    return Redis.from_url(
        url,
        client_name=name,
        socket_timeout=config.timeout_s,
        socket_connect_timeout=config.timeout_s,
        socket_keepalive=True,
        health_check_interval=25,
        max_connections=max_connections,
        retry=Retry(NoBackoff(), 1),
    )
