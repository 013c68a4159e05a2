"""A fresh, migrated database for every test, on a real Postgres that lives as long as the test
process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import LiteralString
from uuid import UUID, uuid4

import pytest

# The Celery app wants to know its broker when it is imported; nothing here rings a bell.
os.environ.setdefault("HARNESS_REDIS_URL", "redis://127.0.0.1:1/0")

from harness_common.embedded import (
    EmbeddedPostgres,
    clone_database,
    create_database,
    drop_database,
)
from harness_common.logins import derive
from harness_common.settings import DatabaseSettings
from harness_common.store.db import Database
from harness_common.store.migrate import migrate
from harness_common.store.postgres import pg
from harness_common.store.schema import metadata
from tests.store.play import Play, make_tenant

TEMPLATE = "store_template"
# Children first; deleting a few rows is far cheaper than a new database.
EMPTY: LiteralString = "; ".join(f"DELETE FROM {t.name}" for t in reversed(metadata.sorted_tables))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def store_postgres() -> Iterator[EmbeddedPostgres]:
    """Start a Postgres and make the template that the databases of tests are copied from."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="harness-store-"))
    folder.chmod(0o711)
    server = EmbeddedPostgres(folder)
    try:
        with server:
            migrate(create_database(server.admin_url, TEMPLATE))
            yield server
    finally:
        server.destroy()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def fresh_database_url(store_postgres: EmbeddedPostgres) -> Iterator[str]:
    """Give a database of its own to a test that changes more than rows."""
    name = f"t_{uuid4().hex}"
    yield clone_database(store_postgres.admin_url, TEMPLATE, name)
    drop_database(store_postgres.admin_url, name)


@pytest.fixture(scope="session")
def database_url(store_postgres: EmbeddedPostgres) -> str:
    return clone_database(store_postgres.admin_url, TEMPLATE, "store")


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """Open the database as workers and the scheduler do, without a row in it."""
    config = DatabaseSettings(snapshot_every=7, pool_max=16)
    async with Database(derive(database_url, "system"), config) as opened:
        await opened.ready()
        yield opened
        async with opened.connection() as conn:
            await pg(conn).execute(EMPTY)


@pytest.fixture
async def processes(db: Database, database_url: str) -> AsyncIterator[list[Database]]:
    """Open the database of `db` as four more processes do."""
    config = DatabaseSettings(pool_max=4)
    async with AsyncExitStack() as stack:
        url = derive(database_url, "system")
        yield [await stack.enter_async_context(Database(url, config)) for _ in range(4)]


@pytest.fixture
async def tenant_id(db: Database) -> UUID:
    return await make_tenant(db)


@pytest.fixture
def play(db: Database, tenant_id: UUID) -> Play:
    """Runs of one tenant, played step by step."""
    return Play(db, tenant_id)
