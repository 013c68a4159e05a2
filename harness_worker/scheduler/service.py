"""The scheduler's process: seek leadership, look once per tick, call the loops that have something
to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import random
from collections.abc import Awaitable, Callable
from uuid import uuid4

import structlog
from redis.asyncio import Redis

from harness_common.broker.publish import Rings
from harness_common.broker.queues import is_amqp
from harness_common.coord.channel import Channel
from harness_common.coord.lease import Leases
from harness_common.coord.redis import RedisFault, connect
from harness_common.core.errors import Conflict, TermOver
from harness_common.settings import Settings
from harness_common.store.connection import DatabaseUnavailable, RowsHeld
from harness_common.store.db import Database
from harness_common.store.keyring import Keyring, load_keks
from harness_common.store.schema_check import wait_for_schema
from harness_common.telemetry.alive import Alive
from harness_common.telemetry.serve_metrics import serve
from harness_worker.scheduler import metrics
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.cancel import CancelLoop
from harness_worker.scheduler.cron import CronLoop
from harness_worker.scheduler.deliver import DeliverLoop
from harness_worker.scheduler.dispatch import DispatchLoop
from harness_worker.scheduler.erase import EraseLoop
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Look, Loop, Shared
from harness_worker.scheduler.metrics import PlatformMetrics
from harness_worker.scheduler.prune import PruneLoop
from harness_worker.scheduler.reap import ReapLoop
from harness_worker.scheduler.release import ReleaseLoop
from harness_worker.scheduler.retention import RetentionLoop
from harness_worker.scheduler.wake import WakeLoop

log = structlog.get_logger()


def make_loops(shared: Shared) -> list[Loop]:
    """Build the loops in the order in which a tick runs them."""
    return [
        ReapLoop(shared),
        CancelLoop(shared),
        WakeLoop(shared),
        CronLoop(shared),
        ReleaseLoop(shared),
        AdmitLoop(shared),
        DispatchLoop(shared),
        DeliverLoop(shared),
        PruneLoop(shared),
        EraseLoop(shared),
        RetentionLoop(shared),
    ]


def _redis_broker(settings: Settings) -> Redis | None:
    """Connect to the Redis that holds the queues, if that is one of its own."""
    url = settings.broker_url
    if url is None or is_amqp(url) or url == settings.redis_url:
        return None
    return connect(url, settings.redis, name="harness-scheduler")


async def look_once(shared: Shared) -> Look:
    """Read what there may be to do."""
    row = await shared.db.fetch_one("look", {"lease_s": shared.settings.worker.lease_s})
    assert row is not None
    return Look(**row)


@metrics.tick_seconds.time()
async def tick(
    shared: Shared, loops: list[Loop], keep: Callable[[], Awaitable[None]] | None = None
) -> tuple[Look, int]:
    """Look once and run every loop once, after `keep` each; returns what was seen and how much was
    done.
    """
    look = await look_once(shared)
    shared.again_in_s = None
    done = 0
    for loop in loops:
        if keep is not None:
            await keep()
        try:
            done += await loop.run_once(look)
        except RowsHeld as error:
            # It comes again at the next tick, when whoever holds them may be gone.
            log.warning("loop.held_up", loop=loop.name, error=error.message)
        except (DatabaseUnavailable, TermOver):
            raise
        except Conflict as error:
            log.warning("loop.conflict", loop=loop.name, error=error.message)
        except Exception:
            # One duty that fails must not stop the others; it is tried again at the next tick.
            log.exception("loop.failed", loop=loop.name)
            shared.count(f"{loop.name}_failures")
    return look, done


class Scheduler:
    """One scheduler process, leading or standing by."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._nudged = asyncio.Event()
        self._stop = asyncio.Event()
        self.name = f"scheduler-{os.getpid()}@{platform.node()}"

    def stop(self) -> None:
        """Ask the process to end."""
        self._stop.set()
        self._nudged.set()

    async def run(self, bell: Rings) -> None:
        """Run until `stop`, and close the bell."""
        settings = self._settings
        keyring = Keyring(load_keks(settings))
        db = Database(
            settings.database_login("system"), settings.database, name=self.name, keyring=keyring
        )
        redis = connect(settings.require_redis_url(), settings.redis, name="harness-scheduler")
        broker = _redis_broker(settings)
        async with db:
            await db.ready(60.0)
            await wait_for_schema(db)
            channel = Channel(redis, settings.redis.prefix)
            shared = Shared(
                settings, db, redis,
                Leases(redis, settings.redis.prefix, settings.worker.lease_s), bell,
                channel=channel, broker=broker,
            )  # fmt: skip
            told = settings.telemetry
            platform_metrics = PlatformMetrics(
                db, asyncio.get_running_loop(), settings.worker.lease_s
            )
            metrics.REGISTRY.register(platform_metrics)
            metrics.doorbells_lost.set_function(lambda: bell.lost)
            hide = serve(metrics.REGISTRY, told.metrics_host, told.scheduler_metrics_port)
            try:
                await self.serve(shared, channel, led=platform_metrics.lead)
            finally:
                await asyncio.to_thread(hide)
                metrics.REGISTRY.unregister(platform_metrics)
                await asyncio.to_thread(bell.close)
                await redis.aclose()
                if broker is not None:
                    await broker.aclose()

    async def serve(
        self,
        shared: Shared,
        channel: Channel,
        loops: Callable[[Shared], list[Loop]] = make_loops,
        *,
        led: Callable[[bool | None], None] = lambda _: None,
    ) -> None:
        """Lead or stand by until `stop`, over what another has opened; `led` hears which, and None
        while Postgres does not answer.
        """
        ttl_s = self._settings.scheduler.leader_ttl_s
        leadership = Leadership(shared.db, uuid4(), self.name, ttl_s)
        listening = asyncio.create_task(self._listen(channel))
        made: list[Loop] = []

        def make(shared: Shared) -> list[Loop]:
            made[:] = loops(shared)
            return made

        try:
            await self._lead(shared, leadership, make, led)
        finally:
            listening.cancel()
            with contextlib.suppress(DatabaseUnavailable):
                await leadership.resign()
            for loop in made:
                if isinstance(loop, DeliverLoop):
                    await loop.finish()

    async def _lead(
        self,
        shared: Shared,
        leadership: Leadership,
        make: Callable[[Shared], list[Loop]],
        led: Callable[[bool | None], None],
    ) -> None:
        config = self._settings.scheduler
        loops: list[Loop] = []
        pause_s = config.tick_s
        alive = Alive("scheduler")
        while not self._stop.is_set():
            alive.beat()
            try:
                if leadership.is_due:
                    was, term = leadership.term, await leadership.seek()
                    if term is not None and term != was:
                        log.info("leader.elected", term=term, name=self.name)
                        shared.term, loops = term, make(shared)
                    led(term is not None)
                if leadership.term is None:
                    pause_s = config.leader_renew_s
                else:
                    look, done = await tick(shared, loops, leadership.keep)
                    pause_s = self._pause(look, done)
                    if shared.again_in_s is not None:
                        pause_s = min(pause_s, shared.again_in_s)
            except Conflict as error:
                log.warning("leader.deposed", error=error.message)
                leadership.lose()
                led(False)
            except DatabaseUnavailable as error:
                log.warning("scheduler.database_unavailable", error=str(error))
                leadership.lose()
                led(None)
                pause_s = 0.5 + random.random()
            await self._sleep(pause_s)

    def _pause(self, look: Look, done: int) -> float:
        """Return how long there is nothing to do, as far as is known."""
        config = self._settings.scheduler
        if done:
            return 0.01
        # Held runs may wait for days for a person; whatever lets them go nudges.
        waits = look.queued or look.orphaned
        longest = config.tick_s if waits else config.idle_tick_s
        times = (look.due_in_s, look.fire_in_s, look.deliver_in_s)
        due = [s for s in times if s is not None]
        if due and min(due) > 0:
            return min(longest, max(0.02, min(due)))
        if due:
            return config.tick_s  # due, and nothing could be done about it: no use in hurrying
        return longest

    async def _sleep(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._nudged.wait()
        self._nudged.clear()
        if pause_s > 0.02:
            await asyncio.sleep(0.005)

    async def _listen(self, channel: Channel) -> None:
        """Turn nudges over Redis into an early tick."""
        while True:
            try:
                async with channel.nudges() as nudges:
                    async for _ in nudges:
                        self._nudged.set()
            except RedisFault as error:
                log.debug("nudges.lost", error=repr(error)[:200])
            except Exception:  # what cannot be read must not make it deaf for good
                log.exception("nudges.failed")
            await asyncio.sleep(0.5)
