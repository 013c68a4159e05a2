"""Leases, signals and live streams within one process: what Redis is for, where there is none.

The same classes over a bus of queues. Everything holds that holds over Redis, and nothing that
matters rests on either.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from uuid import UUID

import orjson

from harness_common.coord.channel import Channel, nudge_channel
from harness_common.coord.lease import Leases, worker_of
from harness_common.coord.live import LiveStream
from harness_common.core.message import Json

_LIMIT: Final = 10_000
"""Messages that wait for one listener; the oldest go first."""
_PREFIX: Final = "local"


class LocalBus:
    """Publishes to whoever listens now."""

    def __init__(self) -> None:
        self._listeners: defaultdict[str, set[asyncio.Queue[bytes]]] = defaultdict(set)

    def publish(self, name: str, body: bytes) -> None:
        """Hand a message to every listener of a name."""
        for queue in self._listeners.get(name, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(body)

    @asynccontextmanager
    async def listen(self, *names: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Listen to names; gives the messages that come from now on."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_LIMIT)
        for name in names:
            self._listeners[name].add(queue)

        async def messages() -> AsyncIterator[bytes]:
            while True:
                yield await queue.get()

        try:
            yield messages()
        finally:
            for name in names:
                self._listeners[name].discard(queue)
                if not self._listeners[name]:
                    del self._listeners[name]


class LocalChannel(Channel):
    """Signals over a `LocalBus`."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self._prefix = _PREFIX

    async def _publish(self, name: str, body: Json) -> bool:
        self._bus.publish(name, orjson.dumps(body))
        return True

    @asynccontextmanager
    async def _subscribe(self, *names: str) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        async with self._bus.listen(*names) as bodies:
            yield (orjson.loads(body) async for body in bodies)


class LocalLive(LiveStream):
    """The live stream over a `LocalBus`: nothing is gathered, since nothing is sent."""

    def __init__(self, bus: LocalBus) -> None:
        self._bus = bus
        self.dropped = 0

    @property
    def pending(self) -> int:
        """Count what waits to be published: nothing."""
        return 0

    def emit(self, run_id: UUID, event: dict[str, Any]) -> None:
        """Show an event of a run now."""
        self._bus.publish(f"{_PREFIX}:live:{run_id.hex}", orjson.dumps(event))

    def delta(
        self, run_id: UUID, step: int, text: str, at: int | None = None, again: int = 0
    ) -> None:
        """Show a piece of answer text now."""
        event = {"type": "answer.delta", "step": step, "text": text}
        event |= {"again": again} if again else {}
        self.emit(run_id, event if at is None else event | {"at": at})

    def nudge(self) -> None:
        """Wake the scheduler now."""
        self._bus.publish(nudge_channel(_PREFIX), b"{}")

    async def run(self) -> None:
        """Do nothing until cancelled."""
        await asyncio.Event().wait()

    async def flush(self) -> None:
        """Do nothing: nothing waits."""


class LocalLeases(Leases):
    """Leases in a dict, with the same life time."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._held: dict[UUID, tuple[str, float]] = {}

    def _owner(self, run_id: UUID) -> str | None:
        owner, until = self._held.get(run_id, (None, 0.0))
        return owner if until > time.monotonic() else None

    async def take(self, run_id: UUID, owner: str) -> bool:
        """Take the lease; False when another owner holds it. Safe to repeat."""
        if self._owner(run_id) not in {None, owner}:
            return False
        self._held[run_id] = (owner, time.monotonic() + self._lease_s)
        return True

    async def release(self, run_id: UUID, owner: str) -> None:
        """Give the lease back if `owner` still holds it."""
        if self._owner(run_id) == owner:
            del self._held[run_id]

    async def holders(self, run_ids: Sequence[UUID]) -> dict[UUID, UUID]:
        """Return which worker process holds the lease of each of these runs, where one does."""
        owners = {run_id: self._owner(run_id) for run_id in run_ids}
        return {r: w for r, owner in owners.items() if owner and (w := worker_of(owner))}

    async def break_lease(self, run_id: UUID, worker: UUID) -> None:
        """Delete the lease of a dead worker process, and only that."""
        if (self._owner(run_id) or "").startswith(f"{worker.hex}:"):
            del self._held[run_id]

    async def renew(self, held: Iterable[tuple[UUID, str]]) -> tuple[list[UUID], list[UUID]]:
        """Extend leases; return the runs whose lease another holds, and those whose lease
        vanished.
        """
        taken: list[UUID] = []
        vanished: list[UUID] = []
        for run_id, owner in held:
            now = self._owner(run_id)
            if now == owner:
                self._held[run_id] = (owner, time.monotonic() + self._lease_s)
            else:
                (vanished if now is None else taken).append(run_id)
        return taken, vanished
