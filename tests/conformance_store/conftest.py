"""Every store in turn: a real Postgres, and the one in memory."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from harness_common.settings import DatabaseSettings
from harness_common.store.db import Database
from harness_common.store.memory import MemoryDatabase
from tests.conformance_store.board import Board, make_tenant
from tests.store.conftest import anyio_backend, database_url, store_postgres
from tests.store.conftest import db as postgres_db

__all__ = ["anyio_backend", "database_url", "postgres_db", "store_postgres"]

SNAPSHOT_EVERY = 7


@pytest.fixture(params=["memory", "postgres"])
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    """Give an empty store."""
    if request.param == "memory":
        yield MemoryDatabase(DatabaseSettings(snapshot_every=SNAPSHOT_EVERY))
    else:
        yield request.getfixturevalue("postgres_db")


@pytest.fixture
async def tenant_id(db: Database) -> UUID:
    return await make_tenant(db, "first")


@pytest.fixture
async def play(db: Database, tenant_id: UUID) -> Board:
    """Runs of one tenant, played step by step."""
    board = Board(db, tenant_id)
    await board.register(board.worker)
    return board


@pytest.fixture
async def other(db: Database, play: Board) -> Board:
    """Runs of another tenant."""
    del play  # it is the second
    board = Board(db, await make_tenant(db, "second"))
    await board.register(board.worker)
    return board
