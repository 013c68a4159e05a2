"""Real MCP servers, and a worker's parts over a real Postgres that use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness_common.store.db import Database
from tests.mcp.bench import Bench
from tests.store.conftest import anyio_backend, database_url, db, play, store_postgres, tenant_id
from tests.store.play import Play

__all__ = ["anyio_backend", "database_url", "db", "play", "store_postgres", "tenant_id"]


@pytest.fixture
async def bench(db: Database, play: Play, tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(db, play, tmp_path)
    yield made
    await made.close()
