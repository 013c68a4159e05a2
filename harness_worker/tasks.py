"""The one Celery task, and the life of a worker process around it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any
from uuid import UUID

import structlog
from celery import Celery

from harness_common.broker.app import STEP_TASK, app
from harness_common.broker.publish import Bell
from harness_common.settings import settings
from harness_common.store.connection import DatabaseUnavailable
from harness_common.telemetry.start import start_traces
from harness_common.telemetry.traces import traces
from harness_worker.advance import answer, release_all
from harness_worker.bridge import wait_for
from harness_worker.heartbeat import heartbeat_loop, lease_loop, signal_loop
from harness_worker.pool import TaskPool
from harness_worker.runtime import Runtime, close_runtime, open_runtime
from harness_worker.telemetry import metrics

log = structlog.get_logger()


class Process:
    """The runtime of this process and its background loops."""

    def __init__(self, app: Celery, name: str) -> None:
        self._app = app
        self.name = name
        self._loops: list[asyncio.Task[Any]] = []
        self.runtime: Runtime | None = None

    async def start(self) -> None:
        """Connect and start heartbeat, signals and the live stream."""
        self.runtime = await open_runtime(settings(), Bell(self._app), self.name)
        self._show(self.runtime)
        self._loops = [
            self.keep(loop)
            for loop in (
                heartbeat_loop(self.runtime),
                lease_loop(self.runtime),
                signal_loop(self.runtime),
                self.runtime.live.run(),
            )
        ]
        log.info("worker.started", worker=str(self.runtime.worker), name=self.name, pid=os.getpid())

    def _show(self, runtime: Runtime) -> None:
        """Begin to be seen: by traces, if they are on, and by metrics."""
        config = runtime.settings
        metrics.places.set(config.worker.concurrency)
        start_traces(
            config.telemetry,
            "harness-worker",
            str(runtime.worker),
            lambda outcome, n: metrics.count(metrics.spans, outcome).inc(n),
        )
        if traces.on:
            traces.clock = lambda: int(runtime.clock.now().timestamp() * 1e6) * 1_000

    def keep(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background loop for as long as the process lives."""
        task = asyncio.create_task(loop)
        task.add_done_callback(self._loop_ended)
        return task

    def _loop_ended(self, task: asyncio.Task[Any]) -> None:
        """End the process when a background loop ended: without it, it would look alive and be
        useless.
        """
        error = None if task.cancelled() else task.exception()
        if self.runtime is None or self.runtime.stopping:
            return
        log.critical("worker.loop_ended", error=repr(error))
        os._exit(70)

    def leave_if_not_alone(self) -> None:
        """End a process that holds one run at a time once a tool outlived its call: if that killed
        the process later, the next run would be blamed.
        """
        runtime = self.runtime
        if runtime is None or runtime.stopping or runtime.settings.worker.concurrency != 1:
            return
        threads = runtime.threads
        if threads.abandoned or threads.outlived:
            runtime.stopping = True  # takes nothing more from here on
            log.warning(
                "worker.leaves",
                abandoned_threads=threads.abandoned,
                outlived_tasks=len(threads.outlived),
            )
            os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        """Take nothing more; wait out the grace; hand over model steps and reads; await started
        writes.
        """
        runtime = self.runtime
        if runtime is None:
            return
        runtime.stopping = True
        log.info("worker.stopping", held=len(runtime.held))
        self._loops.append(asyncio.create_task(_tell_stopping(runtime)))
        await _until_idle(runtime, runtime.settings.worker.grace_s)
        release_all(runtime)
        await _until_idle(runtime, 60.0)
        for loop in self._loops:
            loop.cancel()
        await asyncio.to_thread(runtime.bell.close)
        await asyncio.to_thread(traces.stop)
        with contextlib.suppress(DatabaseUnavailable):
            await close_runtime(runtime)
        log.info("worker.stopped", held=len(runtime.held), **asdict(runtime.counters))


async def _tell_stopping(runtime: Runtime) -> None:
    """Say so in Postgres, if it answers: a kill from now on is not the doing of what we hold."""
    with contextlib.suppress(DatabaseUnavailable):
        await runtime.heart.fetch("worker_stopping", {"worker": runtime.worker})


async def _until_idle(runtime: Runtime, limit_s: float) -> None:
    """Wait until nothing is held, at most `limit_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while runtime.held:  # noqa: ASYNC110 - a set that empties, polled while stopping
                await asyncio.sleep(0.05)


process = Process(app, os.environ.get("HARNESS_WORKER_NAME", f"steps-{os.getpid()}"))
TaskPool.on_loop_start = process.start
TaskPool.on_loop_stop = process.stop
TaskPool.stop_limit_s = settings().worker.grace_s + 90.0


@app.task(name=STEP_TASK, ignore_result=True, acks_late=False)
def step(tenant_id: str, run_id: str, version: int, *_newer: object, **_more: object) -> str:
    """Answer a doorbell: look at this run, and do its next step if it is still to do.

    What a newer version adds to a doorbell is left alone: what to do stands in Postgres.
    """
    assert process.runtime is not None
    rung = getattr(step.request, "traceparent", None) or ""
    outcome: str = wait_for(
        answer(process.runtime, UUID(hex=tenant_id), UUID(hex=run_id), version, rung)
    )
    process.leave_if_not_alone()
    return outcome
