"""A real Postgres and a real Valkey for every test process, empty for each test; the API in front
of them.

They start when the first test asks for them, so that pure tests stay fast. Rows are deleted after
each test, which is far cheaper than another database; `fresh_database_url` is for a test that
changes more than rows.
"""

from __future__ import annotations

import faulthandler
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

# The Celery app wants to know its broker when it is imported.
os.environ.setdefault("HARNESS_REDIS_URL", "redis://127.0.0.1:1/0")

import httpx
import psycopg
from asgi_lifespan import LifespanManager
from fastapi import FastAPI
from pydantic import SecretStr
from redis.asyncio import Redis

from harness_api.app import create_app
from harness_api.deps import Services
from harness_common.embedded import (
    EmbeddedPostgres,
    EmbeddedValkey,
    clone_database,
    create_database,
    drop_database,
)
from harness_common.logins import derive
from harness_common.settings import ApiSettings, Settings
from harness_common.store.db import Database
from harness_common.store.migrate import migrate
from harness_common.store.postgres import pg
from harness_common.store.schema import metadata
from tests.fakes.tenant import PEPPER, Tenant, make_tenant

_TEMPLATE = "template_harness"
_EMPTY = "; ".join(f"DELETE FROM {t.name}" for t in reversed(metadata.sorted_tables))


_HUNG_S = 120
"""How long a test that its own timeout did not end may go on: one that waits for good while it
cleans up would hold the whole run.
"""
_STDERR: pytest.StashKey[int] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Keep what is stderr now: while a test runs it is captured."""
    config.stash[_STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End this process, with the stacks of its threads, when a test outlives its own timeout.

    The timeout raises in the test once; a test that hangs again in what it cleans up is stopped by
    nothing else. The process is replaced and the test is reported as the one that crashed it.
    """
    marked = item.get_closest_marker("timeout")
    limit_s = float(marked.args[0] if marked else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit_s + _HUNG_S, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def services_dir() -> Iterator[Path]:
    """Give a folder that the account of Postgres can pass through."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="harness-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres(services_dir: Path) -> Iterator[EmbeddedPostgres]:
    """Start a Postgres and make the template that the databases of tests are copied from."""
    server = EmbeddedPostgres(services_dir)
    try:
        with server:
            # These tests lose no power; what rests on fsync is tested with a server of its own.
            with psycopg.connect(server.admin_url, autocommit=True) as conn:
                conn.execute("ALTER SYSTEM SET fsync = off")
                conn.execute("SELECT pg_reload_conf()")
            migrate(create_database(server.admin_url, _TEMPLATE), 2)
            yield server
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def valkey(services_dir: Path) -> Iterator[EmbeddedValkey]:
    with EmbeddedValkey(services_dir) as server:
        yield server


@pytest.fixture(scope="session")
def database_url(postgres: EmbeddedPostgres) -> str:
    return clone_database(postgres.admin_url, _TEMPLATE, "test")


@pytest.fixture
def fresh_database_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    name = f"t_{uuid4().hex}"
    yield clone_database(postgres.admin_url, _TEMPLATE, name)
    drop_database(postgres.admin_url, name)


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """Open the database as the system does, without a row in it."""
    async with Database(derive(database_url, "system")) as opened:
        await opened.ready()
        async with opened.connection() as conn:
            await pg(conn).execute(_EMPTY)
        yield opened


@pytest.fixture
async def redis(valkey: EmbeddedValkey) -> AsyncIterator[Redis]:
    """Connect to a Valkey without a key in it."""
    client = Redis.from_url(valkey.url)
    await client.flushall()
    yield client
    await client.aclose()


@pytest.fixture
def config(database_url: str, valkey: EmbeddedValkey, tmp_path: Path) -> Settings:
    return Settings(
        database_url=database_url,
        redis_url=valkey.url,
        data_dir=tmp_path / "data",
        api=ApiSettings(key_pepper=SecretStr(PEPPER.decode())),
    )


@pytest.fixture
async def tenant(db: Database) -> Tenant:
    """Make a tenant with one key per role and an agent `a`."""
    return await make_tenant(db, "first")


@pytest.fixture
async def other_tenant(db: Database) -> Tenant:
    return await make_tenant(db, "second")


@pytest.fixture
async def app(config: Settings, db: Database, redis: Redis) -> AsyncIterator[FastAPI]:
    made = create_app(config)
    async with LifespanManager(made):
        yield made


@pytest.fixture
def services(app: FastAPI) -> Services:
    """Give what the routes of `app` use."""
    found: Services = app.state.services
    return found


@pytest.fixture
async def api(app: FastAPI, tenant: Tenant) -> AsyncIterator[httpx.AsyncClient]:
    """Speak to the API with the admin key of `tenant`."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app),
        base_url="http://api",
        headers=tenant.headers("admin"),
        timeout=30,
    ) as client:
        yield client
