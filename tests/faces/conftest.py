"""The API on a port, with a worker behind it: what other people's clients meet."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import structlog

from tests.api.conftest import url
from tests.faces.worker import Worker, working
from tests.store.play import Play

__all__ = ["url"]

# Tracebacks with every local variable of a worker take seconds each.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)


@pytest.fixture
async def worker(db, redis, config, app) -> AsyncIterator[Worker]:
    async with working(db, redis, config) as made:
        yield made


@pytest.fixture
def play(db, tenant) -> Play:
    """Play the worker of the first tenant's runs."""
    return Play(db, tenant.id)
