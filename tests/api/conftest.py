"""Runs that go on without a worker process, and the API on a real port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn
from fastapi import FastAPI

from harness_api.app import stop_streams
from harness_common.store.db import Database
from tests.fakes.tenant import Tenant
from tests.store.play import Play


@pytest.fixture
def play(db: Database, tenant: Tenant) -> Play:
    """Play the worker of the first tenant's runs."""
    return Play(db, tenant.id)


@pytest.fixture
async def url(app: FastAPI) -> AsyncIterator[str]:
    """Serve `app` on a port of this machine: what streams for ever needs a real connection."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no signal for it
        await asyncio.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    stop_streams(app)
    server.should_exit = True
    await serving
