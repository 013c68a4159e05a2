"""A real scheduler lets its metrics be read while it leads."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from harness_common.broker.app import make_app
from harness_common.broker.publish import Bell
from harness_common.coord.channel import Channel
from harness_common.embedded.process import free_port
from harness_common.settings import TelemetrySettings
from harness_common.store.connection import DatabaseUnavailable
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.service import Scheduler


class Away:
    """A Postgres that does not answer."""

    async def fetch_one(self, *_: Any) -> None:
        raise DatabaseUnavailable("away")


async def test_whoever_watches_a_scheduler_hears_that_postgres_is_away(config, redis):
    scheduler, heard = Scheduler(config), []

    def led(leads: bool | None) -> None:
        heard.append(leads)
        scheduler.stop()

    nothing: Any = Away()
    shared = Shared(config, nothing, redis, nothing, nothing)
    channel = Channel(redis, config.redis.prefix)
    async with asyncio.timeout(10):
        await scheduler.serve(shared, channel, lambda _: [], led=led)
    assert heard == [None]


async def test_a_leading_scheduler_shows_what_it_does_and_what_waits(config, db, redis):
    port = free_port()
    told = TelemetrySettings(scheduler_metrics_port=port)
    scheduler = Scheduler(config.model_copy(update={"telemetry": told}))
    running = asyncio.create_task(scheduler.run(Bell(make_app(config))))
    try:
        async with asyncio.timeout(60), httpx.AsyncClient() as client:
            found: dict[str, float] = {}
            while found.get("harness_leader") != 1 or "harness_overdue_seconds" not in found:
                await asyncio.sleep(0.05)
                try:
                    text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
                except httpx.TransportError:
                    continue
                families = text_string_to_metric_families(text)
                found = {s.name: s.value for f in families for s in f.samples}
        assert found["harness_database_answers"] == 1
        assert found["harness_runs"] == 0
        assert found["harness_scheduler_tick_seconds_count"] >= 1
    finally:
        scheduler.stop()
        await running
    async with httpx.AsyncClient() as client:
        try:
            await client.get(f"http://127.0.0.1:{port}/metrics")
        except httpx.TransportError:
            return
    raise AssertionError("the port is still served after the end")
