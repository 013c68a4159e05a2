"""Threads for synchronous tools, tasks for asynchronous ones. One that outlives its timeout or its
cancel is abandoned and reported; the slot of a thread stays taken until it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar, cast

import structlog

from harness_common.core.errors import Limited

_SLOTS: Final = 32
_STOP_S: Final = 1.5
"""How long an asynchronous tool may go on that was told to stop: longer than it takes to end a
program politely, and short enough for a cancel in 2 s (INV9).
"""
log = structlog.get_logger()
T = TypeVar("T")


class ToolThreads:
    """A bounded number of threads, one a call; daemon threads, so that an abandoned one cannot hold
    the process.
    """

    def __init__(self, slots: int = _SLOTS, stop_s: float = _STOP_S) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._limit, self._stop_s = slots, stop_s
        self.abandoned = 0
        self.outlived: set[asyncio.Task[Any]] = set()
        """Asynchronous tools that go on although they were told to stop."""

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

    async def follow(self, tool: str, work: Awaitable[T]) -> T:
        """Await an asynchronous tool, in a task of its own.

        One that was told to stop (timeout, cancel) and goes on for `stop_s` is left alone and
        reported; whatever it gives after it was told is not taken.
        """
        task = asyncio.ensure_future(_carried(work))
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            await self._stop(tool, task)
            if task.done() and asyncio.iscoroutine(work):
                work.close()  # never begun, if it was stopped that soon
            raise
        return task.result()

    async def _stop(self, tool: str, task: asyncio.Task[Any]) -> None:
        task.cancel()
        try:
            await asyncio.wait([task], timeout=self._stop_s)
        finally:
            if not task.done():
                self.outlived.add(task)
                log.warning("tool.outlived_stop", tool=tool, waited_s=self._stop_s)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.outlived.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: nobody else does

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


async def _carried(work: Awaitable[T]) -> T:
    """Await something; an exit becomes an error that a task can carry, and not the loop's end."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the tool raised {type(error).__name__}: {error}") from error


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
