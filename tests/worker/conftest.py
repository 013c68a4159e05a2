"""The fixtures of the store serve here too: a worker's parts over a real Postgres."""

from __future__ import annotations

import structlog

from tests.store.conftest import (
    anyio_backend,
    database_url,
    db,
    play,
    store_postgres,
    tenant_id,
)

__all__ = ["anyio_backend", "database_url", "db", "play", "store_postgres", "tenant_id"]

# Tracebacks with every local variable of a worker take seconds each.
structlog.configure(
    processors=[
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)
