"""Watching runs: one Redis connection and one poll a second for all readers of this process.

A reader gets notices ("there are new events", from Redis or, when Redis is silent, from the poll)
and deltas (not durable). The facts themselves are read from Postgres by whoever was noticed. A
reader that is slow loses deltas, never notices.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import orjson
import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from harness_api.metrics import Metrics
from harness_common.coord.redis import RedisFault
from harness_common.core.errors import Transient
from harness_common.store.db import Database
from harness_common.store.run_reads import read_progress

log = structlog.get_logger()

POLL_S: Final = 1.0
_DELTAS: Final = 256
_CONFIRM_S: Final = 0.25
_PAUSE_MAX_S: Final = 2.0


class Reader:
    """One watcher of one run: a bounded queue of deltas and the newest notice."""

    def __init__(self, tenant_id: UUID, metrics: Metrics) -> None:
        self.tenant_id = tenant_id
        self._metrics = metrics
        self._deltas: deque[dict[str, Any]] = deque(maxlen=_DELTAS)
        self._some = asyncio.Event()
        self._seen: tuple[int, str] | None = None
        self._noticed = False

    def push(self, item: dict[str, Any]) -> None:
        """Take what came over Redis."""
        if item.get("type") == "committed":
            self.notice()
            return
        if len(self._deltas) == _DELTAS:
            self._metrics.deltas_dropped.inc()
        self._deltas.append(item)
        self._some.set()

    def progress(self, last_seq: int, status: str) -> None:
        """Take what the poll saw; only a change wakes the reader."""
        if (last_seq, status) != self._seen:
            self._seen = (last_seq, status)
            self.notice()

    def notice(self) -> None:
        """Say that there may be new events."""
        self._noticed = True
        self._some.set()

    def take_notice(self) -> bool:
        """Tell whether there was a notice since this was asked last."""
        noticed, self._noticed = self._noticed, False
        return noticed

    async def wait(self, timeout_s: float) -> bool:
        """Wait for something new; False when nothing came."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._some.wait()
        except TimeoutError:
            return False
        self._some.clear()
        return True

    async def wait_notice(self, timeout_s: float) -> bool:
        """Wait for new events, whatever deltas come meanwhile; False when none came."""
        until = asyncio.get_running_loop().time() + timeout_s
        while not self.take_notice():
            if not await self.wait(until - asyncio.get_running_loop().time()):
                return False
        return True

    def deltas(self) -> Iterator[dict[str, Any]]:
        """Hand out what is queued."""
        while self._deltas:
            yield self._deltas.popleft()


class _Topic:
    """The readers of one run."""

    def __init__(self) -> None:
        self.readers: set[Reader] = set()
        self.confirmed = asyncio.Event()


class Hub:
    """Spreads what happens to those who watch. Start with `run` as a task."""

    def __init__(self, redis: Redis, prefix: str, db: Database, metrics: Metrics) -> None:
        self._redis = redis
        self._prefix = f"{prefix}:live:"
        self._db = db
        self._metrics = metrics
        self._topics: dict[UUID, _Topic] = {}
        self._pubsub: PubSub | None = None
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def watch(self, tenant_id: UUID, run_id: UUID) -> AsyncIterator[Reader]:
        """Register a reader; what is committed after this has begun is noticed within a second at
        worst.
        """
        reader = Reader(tenant_id, self._metrics)
        topic = self._topics.setdefault(run_id, _Topic())
        topic.readers.add(reader)
        self._metrics.readers.inc()
        try:
            self._changed.set()
            if len(topic.readers) == 1:
                await self._send("subscribe", run_id)
            if self._pubsub is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CONFIRM_S):
                        await topic.confirmed.wait()
            yield reader
        finally:
            self._metrics.readers.dec()
            topic.readers.discard(reader)
            if not topic.readers and self._topics.get(run_id) is topic:
                del self._topics[run_id]
                await self._send("unsubscribe", run_id)

    def wake_all(self) -> None:
        """Let every reader look up: the process stops."""
        for topic in self._topics.values():
            for reader in topic.readers:
                reader.notice()

    async def run(self) -> None:
        """Listen and poll until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen_for_ever())
            group.create_task(self._poll_for_ever())

    async def _send(self, command: str, run_id: UUID) -> None:
        if self._pubsub is None:  # `_listen` subscribes to all topics when it connects
            return
        try:
            await getattr(self._pubsub, command)(self._name(run_id))
        except RedisFault:
            log.debug("live.subscription_lost", run_id=str(run_id))

    def _name(self, run_id: UUID) -> str:
        return self._prefix + run_id.hex

    async def _listen_for_ever(self) -> None:
        pause_s = 0.1
        while True:
            try:
                async with self._redis.pubsub() as pubsub:
                    await self._listen(pubsub)
            except RedisFault as error:
                log.warning("live.redis_lost", error=f"{type(error).__name__}: {error}"[:200])
            finally:
                self._pubsub = None
                for topic in self._topics.values():
                    topic.confirmed.clear()
            await asyncio.sleep(pause_s)
            pause_s = min(_PAUSE_MAX_S, pause_s * 2)

    async def _listen(self, pubsub: PubSub) -> None:
        # A channel of our own holds the connection while nobody watches.
        await pubsub.subscribe(self._prefix + "none", *(self._name(r) for r in list(self._topics)))
        self._pubsub = pubsub
        for run_id in list(self._topics):
            await pubsub.subscribe(self._name(run_id))
        while True:
            message = await pubsub.get_message(timeout=5.0)
            if message is not None:
                self._spread(message)

    def _spread(self, message: dict[str, Any]) -> None:
        """Hand a message to those who watch its run; one that cannot be read stops nobody."""
        try:
            self._hand_on(message)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("live.message_unreadable", error=repr(error)[:200])

    def _hand_on(self, message: dict[str, Any]) -> None:
        digits = message["channel"].decode().removeprefix(self._prefix)
        topic = self._topics.get(UUID(hex=digits)) if len(digits) == 32 else None
        if topic is None:
            return
        if message["type"] == "subscribe":
            topic.confirmed.set()
        elif message["type"] == "message":
            item = orjson.loads(message["data"])
            if not isinstance(item, dict):
                raise TypeError("not an object")
            for reader in topic.readers:
                reader.push(item)

    async def _poll_for_ever(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._topics:
                await self.poll_once()
                await asyncio.sleep(POLL_S)

    async def poll_once(self) -> None:
        """Look at every watched run once, one short transaction a tenant."""
        by_tenant: dict[UUID, list[UUID]] = {}
        for run_id, topic in self._topics.items():
            for reader in topic.readers:
                by_tenant.setdefault(reader.tenant_id, []).append(run_id)
        for tenant_id, run_ids in by_tenant.items():
            try:
                rows = await read_progress(self._db, tenant_id, run_ids)
            except Transient as error:
                log.warning("live.poll_failed", error=error.message[:200])
                return
            for row in rows:
                watched = self._topics.get(row["id"])
                for reader in watched.readers if watched is not None else ():
                    if reader.tenant_id == tenant_id:
                        reader.progress(row["last_seq"], row["status"])
