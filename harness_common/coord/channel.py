"""Signals and live streams over Redis: fast, lossy, never needed for a right result.

A cancel also travels in the heartbeat's answer; a nudge only saves the scheduler's next tick;
deltas are marked as not durable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import UUID

import orjson
from redis.asyncio import Redis

from harness_common.coord.redis import RedisFault
from harness_common.core.message import Json

Subscription = AbstractAsyncContextManager[AsyncIterator[dict[str, Any]]]


def nudge_channel(prefix: str) -> str:
    """Name the channel that wakes the scheduler."""
    return f"{prefix}:scheduler:nudge"


class Channel:
    """Publish and subscribe under one prefix."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    def _name(self, kind: str, key: str) -> str:
        return f"{self._prefix}:{kind}:{key}"

    async def _publish(self, name: str, body: Json) -> bool:
        try:
            await self._redis.publish(name, orjson.dumps(body))
        except RedisFault:
            return False
        return True

    async def cancel(self, worker: UUID, run_id: UUID) -> bool:
        """Tell a worker process to stop a run it holds; False when Redis did not take it."""
        return await self._publish(self._name("worker", worker.hex), {"cancel": run_id.hex})

    async def throttled(self, throttle: Json) -> bool:
        """Tell all worker processes of a throttle; False when Redis did not take it."""
        return await self._publish(self._name("workers", "all"), {"throttle": throttle})

    async def breaker(self, told: Json) -> bool:
        """Tell all worker processes that a tool's breaker opened or closed."""
        return await self._publish(self._name("workers", "all"), {"breaker": told})

    async def mcp_check(self, tenant_id: UUID, server_id: UUID) -> bool:
        """Ask some worker process to look at an MCP server; False when Redis did not take it."""
        body = {"mcp_check": [tenant_id.hex, server_id.hex]}
        return await self._publish(self._name("workers", "all"), body)

    async def nudge(self) -> bool:
        """Wake the scheduler before its next tick."""
        return await self._publish(nudge_channel(self._prefix), {})

    async def live(self, run_id: UUID, event: dict[str, Any]) -> bool:
        """Show something to whoever watches a run now."""
        return await self._publish(self._name("live", run_id.hex), event)

    @asynccontextmanager
    async def _subscribe(self, *names: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async with self._redis.pubsub() as pubsub:
            await pubsub.subscribe(*names)

            async def messages() -> AsyncIterator[dict[str, Any]]:
                while True:
                    message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5.0)
                    if message is not None:
                        yield orjson.loads(message["data"])

            yield messages()

    def worker_signals(self, worker: UUID) -> Subscription:
        """Listen for signals to one worker process, and to all of them."""
        return self._subscribe(self._name("worker", worker.hex), self._name("workers", "all"))

    def nudges(self) -> Subscription:
        """Listen for scheduler nudges."""
        return self._subscribe(nudge_channel(self._prefix))

    def watch(self, run_id: UUID) -> Subscription:
        """Listen to the live stream of a run: commit notices (`seq`) and deltas."""
        return self._subscribe(self._name("live", run_id.hex))
