"""Threads for synchronous tools. One that outlives its timeout is abandoned and reported, and its
slot stays taken until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from functools import partial
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

    async def run(self, fn: Callable[[], T], on_start: Callable[[], None] = lambda: None) -> T:
        """Run `fn` in a thread of its own and return its value; `on_start` is called once it has
        one.

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
        on_start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def body() -> None:
            value, failure = _outcome(partial(context.run, fn))
            # The loop is closed when the process is going away.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._settle, future, value, failure)

        try:
            threading.Thread(target=body, name="tool", daemon=True).start()
        except RuntimeError:
            self._slots.release()
            raise
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.abandoned += 1
            raise

    def _settle(
        self, future: asyncio.Future[T], value: T | None, failure: Exception | None
    ) -> None:
        """Hand a thread's outcome to whoever awaits it, on the loop."""
        self._slots.release()
        if future.cancelled():
            self.abandoned -= 1
        elif failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(cast("T", value))


def _outcome(fn: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Call `fn`; an exit or a stray `StopIteration` becomes an error that a future can carry."""
    try:
        return fn(), None
    except StopIteration as error:
        return None, RuntimeError(f"the tool raised StopIteration: {error}")
    except Exception as error:  # noqa: BLE001 - handed to whoever awaits
        return None, error
    except BaseException as error:  # noqa: BLE001 - it would end the event loop
        return None, RuntimeError(f"the tool raised {type(error).__name__}: {error}")
