"""The live stream of runs: deltas and notices, gathered and sent in batches, dropped when Redis is
slow.

Nothing waits for it. What matters is in `events`; a reader who misses a delta misses a picture, not
a fact.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final
from uuid import UUID

import orjson
from redis.asyncio import Redis

from harness_common.coord.channel import nudge_channel

_LIMIT: Final = 20_000


class LiveStream:
    """Gathers what to show and publishes it every `interval_s`. Start with `run` as a task."""

    def __init__(self, redis: Redis, prefix: str, interval_s: float = 0.05) -> None:
        self._redis = redis
        self._prefix = prefix
        self._interval_s = interval_s
        self._pending: deque[tuple[UUID, dict[str, Any]]] = deque(maxlen=_LIMIT)
        self._some = asyncio.Event()
        self._nudge = False
        self.dropped = 0

    def emit(self, run_id: UUID, event: dict[str, Any]) -> None:
        """Show an event of a run soon; the oldest pending one is dropped when there are many."""
        if len(self._pending) == _LIMIT:
            self.dropped += 1
        self._pending.append((run_id, event))
        self._some.set()

    def delta(self, run_id: UUID, step: int, text: str, at: int = 0) -> None:
        """Show a piece of answer text, `at` so many characters from its start; joined to the piece
        before it when both are of one step.
        """
        if self._pending:
            last_id, last = self._pending[-1]
            if last_id == run_id and _goes_on(last, step, at):
                last["text"] += text
                return
        self.emit(run_id, {"type": "answer.delta", "step": step, "text": text, "at": at})

    def nudge(self) -> None:
        """Wake the scheduler with the next batch: a slot is free, or a timer was set."""
        self._nudge = True
        self._some.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._some.wait()
            self._some.clear()
            batch = list(self._pending)
            self._pending.clear()
            pipe = self._redis.pipeline(transaction=False)
            for run_id, event in batch:
                pipe.publish(f"{self._prefix}:live:{run_id.hex}", orjson.dumps(event))
            if self._nudge:
                self._nudge = False
                pipe.publish(nudge_channel(self._prefix), b"{}")
            try:
                await pipe.execute()
            except Exception:  # noqa: BLE001 - whatever Redis did, nothing depends on it
                self.dropped += len(batch)
            await asyncio.sleep(self._interval_s)


def _goes_on(last: dict[str, Any], step: int, at: int) -> bool:
    """Tell whether a piece of text follows right after `last`."""
    if last.get("type") != "answer.delta" or last["step"] != step:
        return False
    end: int = last["at"] + len(last["text"])
    return end == at
