"""The HTTP API as an ASGI app. `create_app` puts it together; `__main__` serves it, the tests call
it.

A process holds nothing that matters: two of them behind any balancer need no stickiness.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import FastAPI
from fastapi.routing import APIRoute

from harness_api import errors, openapi
from harness_api.auth import Keyring, permission_of
from harness_api.console.access import check_rules
from harness_api.console.guard import ConsoleGuard
from harness_api.console.pages import PAGES
from harness_api.console.session import Sessions
from harness_api.deps import Services
from harness_api.flower import upstream_of
from harness_api.live import Hub
from harness_api.load import LoadGuard
from harness_api.mcp_face import mount
from harness_api.metrics import Metrics
from harness_api.middleware import BodyGuard, RequestLife
from harness_api.routes import ROUTERS
from harness_common import VERSION
from harness_common.blobs.registry import blobs_of
from harness_common.broker.app import make_app
from harness_common.broker.publish import Bell
from harness_common.coord.channel import Channel
from harness_common.coord.redis import connect
from harness_common.embeddings.registry import embedder_of
from harness_common.settings import Settings
from harness_common.store.db import Database
from harness_common.store.keyring import Keyring as DataKeyring
from harness_common.store.keyring import load_keks
from harness_common.store.keys import load_pepper
from harness_common.telemetry.start import start_traces
from harness_common.telemetry.traces import traces


@asynccontextmanager
async def _services(config: Settings, metrics: Metrics) -> AsyncIterator[Services]:
    data_keys = DataKeyring(load_keks(config))
    pepper = load_pepper(config)
    async with contextlib.AsyncExitStack() as stack:
        db = await stack.enter_async_context(
            Database(
                config.database_login("api"),
                config.database,
                name="harness-api",
                bound=True,
                keyring=data_keys,
            )
        )
        redis = connect(config.require_redis_url(), config.redis, name="harness-api")
        stack.push_async_callback(redis.aclose)
        bell = Bell(make_app(config))
        stack.callback(bell.close)
        http = await stack.enter_async_context(httpx.AsyncClient())
        flower = await stack.enter_async_context(upstream_of(config))
        hub = Hub(redis, config.redis.prefix, db, metrics)
        task = asyncio.create_task(hub.run(), name="hub")
        stack.push_async_callback(_end, task)
        yield Services(
            config=config,
            db=db,
            redis=redis,
            channel=Channel(redis, config.redis.prefix),
            bell=bell,
            blobs=blobs_of(config),
            hub=hub,
            keyring=Keyring(db, pepper),
            sessions=Sessions(pepper, config.api.console_session_s),
            metrics=metrics,
            data_keys=data_keys,
            flower=flower,
            embedder=embedder_of(config, http),
        )


@asynccontextmanager
async def _traces(config: Settings, metrics: Metrics) -> AsyncIterator[None]:
    """Send spans while the app lives, if a collector is set."""
    instance = f"{os.getpid()}@{platform.node()}"
    start_traces(config.telemetry, "harness-api", instance, metrics.count_spans)
    try:
        yield
    finally:
        await asyncio.to_thread(traces.stop)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def create_app(config: Settings) -> FastAPI:
    """Build the app. Its lifespan opens the services; it starts while Postgres or Redis are still
    away.
    """
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with _traces(config, metrics), _services(config, metrics) as services:
            app.state.services = services
            app.state.loop = asyncio.get_running_loop()
            try:
                async with mount.opened(app):
                    yield
            finally:
                stop_streams(app)

    app = FastAPI(
        title="Harness", version=VERSION, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    for router in (*ROUTERS, *PAGES):
        # Not `include_router`: it wraps routes, and what a wrapper hides no check can walk.
        app.router.routes.extend(router.routes)
    mount.add_route(app)
    errors.install(app)
    openapi.install(app)
    app.add_middleware(BodyGuard, max_body_bytes=config.api.max_body_bytes)
    app.add_middleware(
        LoadGuard,
        max_requests=config.api.max_requests,
        max_streams=config.api.max_streams,
        max_streams_per_key=config.api.max_streams_per_key,
        metrics=metrics,
    )
    app.add_middleware(ConsoleGuard)
    app.add_middleware(RequestLife, metrics=metrics)  # the last one added is the outermost
    check_permissions(app)
    check_rules(app)
    return app


def stop_streams(app: FastAPI) -> None:
    """End open streams and long polls; their clients come back and resume elsewhere."""
    services: Services | None = getattr(app.state, "services", None)
    if services is not None:
        services.stopping.set()
        services.hub.wake_all()


def check_permissions(app: FastAPI) -> None:
    """Refuse to build an app that has a route under /v1 without a permission."""
    bare = [
        path
        for route in app.routes
        if (path := str(getattr(route, "path", "/v1"))).startswith("/v1")
        and (not isinstance(route, APIRoute) or permission_of(route) is None)
    ]
    if bare:
        raise RuntimeError(f"routes without a permission: {', '.join(bare)}")
