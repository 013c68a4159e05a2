"""Celery's worker pool as an asyncio loop in a thread of its own (`-P custom`).

Celery's tracer runs in a greenlet (see `bridge`), so that signals, acks and events stay
Celery's, while the body of the task awaits. One process holds thousands of slow model calls. The
semaphore stands *before* `apply_target`: acknowledging early frees the prefetch window at once, and
would otherwise let a worker take every message there is.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import structlog
import uvloop
from celery.concurrency.base import BasePool, apply_target
from celery.worker import state
from kombu.asynchronous import Hub

from harness_worker.bridge import in_greenlet

log = structlog.get_logger()

Hook = Callable[[], Any]


class TaskPool(BasePool):
    """An event loop that runs tasks side by side. `on_loop_start` and `on_loop_stop` are set by
    `tasks`.
    """

    body_can_be_buffer = True
    signal_safe = False
    is_green = False
    task_join_will_block = False

    on_loop_start: ClassVar[Hook | None] = None
    on_loop_stop: ClassVar[Hook | None] = None
    hub: Hub | None = None
    """What waits for doorbells, in the main thread."""
    stop_limit_s: ClassVar[float | None] = None
    """How long a drain may take; a loop that is stuck must not keep the process for ever."""

    def on_start(self) -> None:
        """Start the loop and wait until the process is ready to work."""
        self.loop = uvloop.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ending = False
        self._slots = asyncio.Semaphore(self.limit)
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._thread.start()
        hook = type(self).on_loop_start
        if hook is not None:
            asyncio.run_coroutine_threadsafe(hook(), self.loop).result()

    def register_with_event_loop(self, hub: Hub) -> None:
        """Learn who waits for doorbells, where places bound what is taken: RabbitMQ does it by
        itself.
        """
        if self.app is None or self.app.conf.worker_disable_prefetch:
            self.hub = hub

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        if not self._ending:
            # Without its loop the process would go on taking doorbells and never answer one.
            log.critical("loop.ended")
            os._exit(70)

    def on_apply(
        self,
        target: Any,
        args: Any = None,
        kwargs: Any = None,
        callback: Any = None,
        accept_callback: Any = None,
        **_: Any,
    ) -> None:
        """Run one task on the loop, as soon as a slot is free."""

        def start() -> None:
            task = self.loop.create_task(self._one(target, args, kwargs, callback, accept_callback))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self.loop.call_soon_threadsafe(start)

    async def _one(
        self, target: Any, args: Any, kwargs: Any, callback: Any, accept_callback: Any
    ) -> None:
        async with self._slots:
            try:
                await in_greenlet(apply_target, target, args, kwargs, callback, accept_callback)
            except Exception:
                log.exception("task.crashed")
        self._say_free()

    def _say_free(self) -> None:
        """Let a process that was full ask for doorbells again: nothing else wakes it, up to 1 s."""
        if self.hub is not None and len(state.reserved_requests) >= self.limit - 1:
            self.hub.call_soon(_nothing)

    def on_stop(self) -> None:
        """Drain: the hook decides what is awaited and what is handed over; then the loop ends."""
        hook = type(self).on_loop_stop

        async def drain() -> None:
            if hook is not None:
                await hook()
            if self._tasks:
                await asyncio.wait(list(self._tasks), timeout=5.0)

        try:
            asyncio.run_coroutine_threadsafe(drain(), self.loop).result(type(self).stop_limit_s)
            self._ending = True
        except TimeoutError:
            log.critical("loop.stuck")
            os._exit(75)
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(5.0)

    def on_terminate(self) -> None:
        """Stop without waiting (a second signal)."""
        self._ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)

    def _get_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super()._get_info()
        info["max-concurrency"] = self.limit
        info["running"] = len(self._tasks)
        return info


def _nothing() -> None:
    """Do nothing: being called at all is the point."""
