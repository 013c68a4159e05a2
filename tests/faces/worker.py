"""A worker and a scheduler in the process of the test: the real parts over the real databases,
without the broker between them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx
import psycopg
from redis.asyncio import Redis

from harness_common.batch import Batcher
from harness_common.blobs.local import LocalBlobs
from harness_common.contracts.tool import Tool
from harness_common.coord.channel import Channel
from harness_common.coord.lease import Leases
from harness_common.coord.live import LiveStream
from harness_common.settings import Settings
from harness_common.store.apply import group_commit
from harness_common.store.claim import claim
from harness_common.store.db import Database
from harness_common.store.secret_values import TenantSecrets
from harness_worker.advance import answer
from harness_worker.heartbeat import heartbeat_loop
from harness_worker.models.registry import ModelRegistry
from harness_worker.runtime import PgClock, Runtime, register
from harness_worker.scheduler.service import make_loops, tick
from harness_worker.throttles import Throttles
from harness_worker.tools.breakers import Breakers
from harness_worker.tools.catalog import Catalog
from harness_worker.tools.registry import ToolRegistry
from tests.store.play import sql
from tests.worker.runtime import FakeBell, make_shared


async def open_worker(
    db: Database, redis: Redis, config: Settings, tools: Iterable[Tool] = ()
) -> Runtime:
    worker = uuid4()
    clock, prefix = PgClock(), config.redis.prefix
    channel = Channel(redis, prefix)
    client = httpx.AsyncClient()
    registry = ToolRegistry.from_settings(config)
    for tool in tools:
        registry.add(tool)
    bell: Any = FakeBell()
    runtime = Runtime(
        settings=config,
        worker=worker,
        name="w",
        db=db,
        heart=db,
        redis=redis,
        leases=Leases(redis, prefix, config.worker.lease_s),
        channel=channel,
        live=LiveStream(redis, prefix, 0.01),
        bell=bell,
        http=client,
        models=ModelRegistry(config, client),
        catalog=Catalog(registry),
        blobs=LocalBlobs(config.data_dir.resolve() / "blobs"),
        claims=Batcher(partial(claim, db, worker=worker, hold_s=900), alone_on=(psycopg.Error,)),
        commits=group_commit(db),
        throttles=Throttles(db, channel, clock.now),
        breakers=Breakers(db, channel, clock.now, config.tool),
        secrets=TenantSecrets(db),
        clock=clock,
    )
    runtime.clock.set(await register(db, config, worker, "w"))
    return runtime


class Worker:
    """Answers every doorbell there would be, and lets the scheduler's loops run."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._steps: set[asyncio.Task[Any]] = set()
        self.stopped = False

    async def run(self) -> None:
        shared = await make_shared(
            self.runtime.db, redis=self.runtime.redis, settings=self.runtime.settings
        )
        loops = make_loops(shared)
        while not self.stopped:
            await tick(shared, loops)
            for row in await sql(
                self.runtime.db,
                "SELECT tenant_id, id, version FROM runs "
                "WHERE status = 'running' AND claim_id IS NULL",
            ):
                self._begin(row["tenant_id"], row["id"], row["version"])
            await asyncio.sleep(0.01)

    def _begin(self, tenant_id: UUID, run_id: UUID, version: int) -> None:
        if run_id in self.runtime.held:
            return
        task = asyncio.create_task(answer(self.runtime, tenant_id, run_id, version))
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)

    def cancel(self, run_id: UUID) -> None:
        self.runtime.held[run_id].cancel()


@contextlib.asynccontextmanager
async def working(
    db: Database, redis: Redis, config: Settings, tools: Iterable[Tool] = ()
) -> AsyncIterator[Worker]:
    runtime = await open_worker(db, redis, config, tools)
    worker = Worker(runtime)
    work = (worker.run(), runtime.live.run(), heartbeat_loop(runtime))
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield worker
    finally:
        worker.stopped = True
        left = {*tasks, *worker._steps}
        while left:  # a cancel may come to nothing where a statement ends at that moment
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=1)
        await runtime.models.aclose()
        await runtime.http.aclose()
