"""The live stream of runs: deltas and notices, gathered and sent in batches, dropped when Redis is
slow.

Nothing waits for it. What matters is in `events`; a reader who misses a delta misses a picture, not
a fact.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final
from uuid import UUID

import orjson
from redis.asyncio import Redis

from harness_common.coord.channel import nudge_channel

_LIMIT: Final = 20_000
_LIMIT_CHARS: Final = 32_000_000
_SHARE: Final = 4
"""After a batch, so many times as long as it took is spent on other things."""
_LONGEST_S: Final = 0.5
_PER_CALL: Final = 1_000

# One command and one answer for a batch: a pipeline costs the client ten times as much.
_PUBLISH: Final = "for i, channel in ipairs(KEYS) do redis.call('PUBLISH', channel, ARGV[i]) end"


class _Shown:
    """Something to show of a run: an event, or a delta that still grows."""

    __slots__ = ("end", "event", "pieces", "run_id")

    def __init__(self, run_id: UUID, event: dict[str, Any], pieces: list[str] | None) -> None:
        self.run_id = run_id
        self.event = event
        self.pieces = pieces
        self.end = event.get("at", 0) + sum(map(len, pieces or ()))

    def goes_on(self, step: int, at: int | None, again: int) -> bool:
        """Tell whether a piece of text `at` this place of a step's answer follows right after."""
        if self.pieces is None or self.event["step"] != step:
            return False
        if self.event.get("again", 0) != again:
            return False
        return at is None or at == self.end

    def grow(self, text: str) -> None:
        """Add the piece that follows."""
        assert self.pieces is not None
        self.pieces.append(text)
        self.end += len(text)

    def dumps(self) -> bytes:
        """Write it as JSON."""
        if self.pieces is not None:
            return orjson.dumps({**self.event, "text": "".join(self.pieces)})
        return orjson.dumps(self.event)


class LiveStream:
    """Gathers what to show and publishes it every `interval_s`. Start with `run` as a task.

    The order within a run is kept; deltas of one step that nothing came between are joined.
    """

    def __init__(self, redis: Redis, prefix: str, interval_s: float = 0.05) -> None:
        self._redis = redis
        self._channel = f"{prefix}:live:"
        self._nudges = nudge_channel(prefix)
        self._interval_s = interval_s
        self._pending: deque[_Shown] = deque()
        self._growing: dict[UUID, _Shown] = {}
        self._chars = 0
        self._some = asyncio.Event()
        self._nudge = False
        self.dropped = 0

    @property
    def pending(self) -> int:
        """Count what waits to be published."""
        return len(self._pending)

    def emit(self, run_id: UUID, event: dict[str, Any]) -> None:
        """Show an event of a run soon; the oldest pending one is dropped when there are many."""
        self._growing.pop(run_id, None)
        self._add(_Shown(run_id, event, None))

    def delta(
        self, run_id: UUID, step: int, text: str, at: int | None = None, again: int = 0
    ) -> None:
        """Show a piece of answer text, `at` so many characters from its start; joined to the piece
        before it when it follows right after that, which it does when it does not say where it is.
        The text of another model, asked `again` after so many had begun theirs, is another text.
        """
        self._chars += len(text)
        shown = self._growing.get(run_id)
        if shown is not None and shown.goes_on(step, at, again):
            shown.grow(text)
            if self._chars > _LIMIT_CHARS:
                self._drop_oldest()
            return
        event: dict[str, Any] = {"type": "answer.delta", "step": step}
        if at is not None:
            event["at"] = at
        if again:
            event["again"] = again
        shown = _Shown(run_id, event, [text])
        self._growing[run_id] = shown
        self._add(shown)

    def nudge(self) -> None:
        """Wake the scheduler with the next batch: a slot is free, or a timer was set."""
        self._nudge = True
        self._some.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():  # redis-py can swallow a cancellation that meets an answer
            await self._some.wait()
            self._some.clear()
            began = time.monotonic()
            await self.flush()
            took_s = time.monotonic() - began
            await asyncio.sleep(min(max(self._interval_s, _SHARE * took_s), _LONGEST_S))

    async def flush(self) -> None:
        """Publish what is pending now."""
        batch = list(self._pending)
        self._pending.clear()
        self._growing.clear()
        self._chars = 0
        channels = [f"{self._channel}{shown.run_id.hex}" for shown in batch]
        bodies = [shown.dumps() for shown in batch]
        if self._nudge:
            self._nudge = False
            channels.append(self._nudges)
            bodies.append(b"{}")
        for at in range(0, len(channels), _PER_CALL):
            keys, values = channels[at : at + _PER_CALL], bodies[at : at + _PER_CALL]
            try:
                if len(keys) == 1:
                    await self._redis.publish(keys[0], values[0])
                else:
                    await self._redis.eval(_PUBLISH, len(keys), *keys, *values)
            except Exception:  # noqa: BLE001 - whatever Redis did, nothing depends on it
                self.dropped += len(keys)

    def _add(self, shown: _Shown) -> None:
        self._pending.append(shown)
        if len(self._pending) > _LIMIT:
            self._drop_oldest()
        self._some.set()

    def _drop_oldest(self) -> None:
        oldest = self._pending.popleft()
        self.dropped += 1
        if oldest.pieces is not None:
            self._chars -= sum(map(len, oldest.pieces))
        if self._growing.get(oldest.run_id) is oldest:
            del self._growing[oldest.run_id]
