"""Threads for synchronous tools. One that outlives its timeout is abandoned and reported, and its
slot stays taken until it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Final, TypeVar, cast

from harness_common.core.errors import Limited

_SLOTS: Final = 32
T = TypeVar("T")


class ToolThreads:
    """A bounded number of threads, one a call; daemon threads, so that an abandoned one cannot hold
    the process.
    """

    def __init__(self, slots: int = _SLOTS) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._limit = slots
        self.abandoned = 0

    async def run(self, fn: Callable[[], T]) -> T:
        """Run `fn` in a thread of its own and return its value.

        When the awaiting task is cancelled (timeout, cancel) the thread goes on alone; its slot
        comes back when it ends. Raises `Limited` when every slot is held by an abandoned call.
        """
        if self.abandoned >= self._limit:
            raise Limited(
                f"all {self._limit} tool threads are held by calls that outlived their timeout",
                code="TOOL_THREADS_EXHAUSTED",
                retry_after_s=30.0,
                scope="worker",
            )
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def settle(value: T | None, error: BaseException | None) -> None:
            self._slots.release()
            if future.cancelled():
                self.abandoned -= 1
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(cast("T", value))

        def body() -> None:
            value, failure = None, None
            try:
                value = context.run(fn)
            except BaseException as error:  # noqa: BLE001 - handed to whoever awaits
                failure = error
            try:
                loop.call_soon_threadsafe(settle, value, failure)
            except RuntimeError:
                return  # the loop is closed: the process is going away

        threading.Thread(target=body, name="tool", daemon=True).start()
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.abandoned += 1
            raise
