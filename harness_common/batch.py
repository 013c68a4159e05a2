"""Gathering single calls into batches, without waiting: what arrives while one batch is under way
is the next batch.

At low load a batch has one item and costs nothing extra; under load one round trip (and one fsync)
serves many callers. Used for claims and commits (Postgres) and for leases (Redis).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Batcher(Generic[Item, Answer]):
    """Calls `work(items)` for batches of items; `await batcher(item)` gives that item's answer.

    `work` returns one answer per item, in order. When it raises and the batch had several items,
    each is tried alone, so that one bad item fails nobody else. At most `parallel` batches are
    under way: another begins beside one only when items have waited `patience_s` for it, so that
    one that is held up holds up nobody else.
    """

    def __init__(
        self,
        work: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]],
        *,
        largest: int = 64,
        parallel: int = 2,
        patience_s: float = 0.02,
        alone_on: tuple[type[Exception], ...] = (),
    ) -> None:
        self._work = work
        self._largest = largest
        self._parallel = parallel
        self._patience_s = patience_s
        self._impatient: asyncio.TimerHandle | None = None
        self._alone_on = alone_on
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._running = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.batches = 0
        self.items = 0

    def __call__(self, item: Item) -> asyncio.Future[Answer]:
        """Queue an item. Cancelling whoever awaits does not undo the work."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()
        self._waiting.append((item, future))
        if self._running == 0:
            self._begin()
        elif self._running < self._parallel and self._impatient is None:
            self._impatient = loop.call_later(self._patience_s, self._begin_another)
        return future

    def _begin_another(self) -> None:
        self._impatient = None
        if self._waiting and self._running < self._parallel:
            self._begin()

    def _begin(self) -> None:
        self._running += 1
        task = asyncio.get_running_loop().create_task(self._drain())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = (
                    self._waiting[: self._largest],
                    self._waiting[self._largest :],
                )
                await self._one_batch(batch)
        finally:
            self._running -= 1

    async def _one_batch(self, batch: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        self.batches += 1
        self.items += len(batch)
        try:
            answers = await self._work([item for item, _ in batch])
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits
            if len(batch) > 1 and isinstance(error, self._alone_on):
                for one in batch:
                    await self._one_batch([one])
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), answer in zip(batch, answers, strict=True):
            if not future.done():
                future.set_result(answer)
