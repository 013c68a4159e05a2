"""The quarantine: a worker process that holds one run at a time, for runs whose processes died.

A supervisor keeps at most one, only while there are suspects. What dies there held one run and
nothing else, so that the death is that run's own doing (INV15). It is an ordinary worker process:
its liveness, its leases and its claims are judged by the same rules as those of any other.
"""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import structlog

from harness_common.core.lease import is_quarantine, quarantine_of
from harness_common.settings import Settings
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.db import Database
from harness_worker.worker_process import (
    KILL_AFTER_S,
    WorkerProcess,
    report_death,
    start_process,
)

log = structlog.get_logger()

_LONGEST_PAUSE_S: Final = 5.0
"""Its processes are made to die: those who wait behind a poison run wait no longer than this."""
_HURRY_S: Final = 3.0
"""How long to look often after a process died: about as long as its runs need to be given back."""
_HURRIED_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Seen:
    """What Postgres said about the suspects of our queues, and when (monotonic, before asking)."""

    at: float
    waiting: int
    unserved: int
    """Those of them whose quarantine queue no live process serves."""
    holds: bool
    """Our own quarantine process holds a run."""


class SuspectWatch:
    """Asks Postgres about suspects, from a thread with an event loop of its own.

    The latest answer is in `seen`; while Postgres is away it just grows old.
    """

    def __init__(self, config: Settings, queues: list[str]) -> None:
        self._config = config
        self._queues = queues
        self.worker: UUID | None = None
        self.seen: Seen | None = None
        self._hurry_until = 0.0
        self._loop = asyncio.new_event_loop()
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Begin to look; ends with the process."""
        threading.Thread(target=self._run, name="suspects", daemon=True).start()

    def hurry(self) -> None:
        """Look now, and often for a short while: a process died."""
        self._hurry_until = time.monotonic() + _HURRY_S
        self._loop.call_soon_threadsafe(self._wake.set)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._watch())

    async def _watch(self) -> None:
        config = self._config
        one = config.database.model_copy(update={"pool_min": 1, "pool_max": 1})
        there = True
        async with Database(config.database_login("system"), one, name="harness supervisor") as db:
            while True:
                try:
                    self.seen = await self._look(db)
                    there = True
                except DatabaseUnavailable as error:
                    if there:
                        log.warning("suspects.not_seen", error=str(error))
                    there = False
                except Exception:
                    log.exception("suspects.not_seen")
                await self._pause()

    async def _look(self, db: Database) -> Seen:
        at = time.monotonic()
        row = await db.fetch_one(
            "suspects",
            {
                "queues": self._queues,
                "worker": self.worker,
                "soon_s": self._config.scheduler.ring_after_max_s + 10.0,
            },
        )
        assert row is not None
        return Seen(at, row["waiting"], row["unserved"], row["holds"])

    async def _pause(self) -> None:
        hurried = time.monotonic() < self._hurry_until
        pause_s = _HURRIED_LOOK_S if hurried else self._config.worker.quarantine_look_s
        try:
            async with asyncio.timeout(pause_s):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()


class Quarantine:
    """Starts the quarantine process when suspects wait and nobody serves them, and ends it when
    there are none any more. `look` never waits.
    """

    def __init__(self, config: Settings, environment: Mapping[str, str]) -> None:
        queues = [q for q in config.worker.queues if not is_quarantine(q)]
        self._config = config
        self._environment = {
            **environment,
            "HARNESS_WORKER__CONCURRENCY": "1",
            "HARNESS_WORKER__QUEUES": json.dumps([quarantine_of(q) for q in queues]),
            # A step that succeeded clears the run: its next one belongs to the ordinary workers.
            "HARNESS_STEPS_PER_TASK": "1",
        }
        self._child: WorkerProcess | None = None
        self._busy_at = 0.0
        self._ended_at = 0.0
        self._told_at: float | None = None
        self.watch = SuspectWatch(config, queues)
        if queues:
            self.watch.start()

    @property
    def process(self) -> WorkerProcess | None:
        """Return the process that runs now, if any."""
        child = self._child
        return child if child is not None and child.restart_at is None else None

    def look(self) -> None:
        """Start, end or replace the process, by what was seen last."""
        child = self.process
        if child is not None and (code := child.ended(_LONGEST_PAUSE_S)) is not None:
            self._ended_at = time.monotonic()
            report_death(self._config, child.incarnation, code)
            self.watch.hurry()
            return
        seen = self.watch.seen
        if seen is None:
            return
        if child is None:
            self._start_if_needed(seen)
        elif self._told_at is None:
            self._end_if_idle(child, seen)
        elif time.monotonic() > self._told_at + self._config.worker.grace_s + KILL_AFTER_S:
            child.process.kill()

    def _start_if_needed(self, seen: Seen) -> None:
        before, now = self._child, time.monotonic()
        if not seen.unserved or seen.at < self._ended_at:
            return
        if before is not None and before.restart_at is not None and now < before.restart_at:
            return
        log.warning("quarantine.started", waiting=seen.waiting)
        self._child = start_process(
            "quarantine",
            self._environment,
            quick_ends=before.quick_ends if before is not None else 0,
            # Not a kill: the end of its supervisor must not look like the doing of the run it
            # holds, which is given back instead.
            death_signal=signal.SIGTERM,
        )
        self._busy_at, self._told_at = now, None
        self.watch.worker = self._child.incarnation

    def _end_if_idle(self, child: WorkerProcess, seen: Seen) -> None:
        if seen.waiting or seen.holds:
            self._busy_at = max(self._busy_at, seen.at)
        elif seen.at - self._busy_at >= self._config.worker.quarantine_linger_s:
            log.info("quarantine.idle", pid=child.process.pid)
            child.process.send_signal(signal.SIGTERM)
            self._told_at = time.monotonic()
