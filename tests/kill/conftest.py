"""The fixtures of the store serve here too."""

from __future__ import annotations

from tests.store.conftest import (
    anyio_backend,
    database_url,
    db,
    play,
    store_postgres,
    tenant_id,
)

__all__ = ["anyio_backend", "database_url", "db", "play", "store_postgres", "tenant_id"]
