"""The API behind PgBouncer in transaction mode, where all its connections share one of Postgres."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
from asgi_lifespan import LifespanManager

from harness_api.app import create_app
from harness_common.embedded.process import free_port
from harness_common.logins import derive, user_and_password
from harness_common.settings import DatabaseSettings
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.db import Database
from harness_common.store.postgres import pg

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
UNPREPARED = DatabaseSettings(prepare_threshold=None, pool_max=4)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(PGBOUNCER is None, reason="pgbouncer is not installed"),
]


@pytest.fixture
def pooled_url(services_dir: Path, database_url: str) -> Iterator[str]:
    """Give the API's URL through a pooler that has a single connection to Postgres."""
    assert PGBOUNCER is not None
    api, to = derive(database_url, "api"), urlsplit(database_url)
    user, password = user_and_password(api)
    port, folder = free_port(), services_dir / "pgbouncer"
    folder.mkdir(mode=0o755, exist_ok=True)
    (folder / "users.txt").write_text(f'"{user}" "{password}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host={to.hostname} port={to.port}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = scram-sha-256\nauth_file = {folder / 'users.txt'}\n"
        "pool_mode = transaction\ndefault_pool_size = 1\nignore_startup_parameters = options\n"
    )
    account = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
    process = subprocess.Popen(
        [PGBOUNCER, "-q", str(folder / "pgbouncer.ini")], user=account, stderr=subprocess.PIPE
    )
    url = api.replace(f":{to.port}/", f":{port}/")
    try:
        _wait(url, process)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 10
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            assert process.poll() is None, process.communicate()[1].decode()
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return


async def agents_of(db: Database, tenant_id) -> tuple[set, int]:
    """Return the tenants whose agents a transaction sees, and the connection of Postgres."""
    async with db.tenant_transaction(tenant_id) as conn:
        query = "SELECT tenant_id, pg_backend_pid() AS pid FROM agents"
        rows = await (await pg(conn).execute(query)).fetchall()
        return {r["tenant_id"] for r in rows}, rows[0]["pid"]


async def unscoped(db: Database) -> list:
    async with db.connection() as conn:
        return await (await pg(conn).execute("SELECT tenant_id FROM agents")).fetchall()


async def test_tenants_share_a_connection_and_see_nothing_of_each_other(
    pooled_url, tenant, other_tenant
):
    async with Database(pooled_url, UNPREPARED, bound=True) as db:
        await db.ready()

        async def many(who) -> None:
            for _ in range(20):
                seen, pid = await agents_of(db, who.id)
                assert seen == {who.id}
                pids.add(pid)
                assert await unscoped(db) == []

        pids: set[int] = set()
        await asyncio.gather(*(many(who) for who in (tenant, other_tenant) * 3))
        assert len(pids) == 1
        for timeout_s in (0.05, 0.2):
            with pytest.raises((TimeoutError, DatabaseUnavailable)):
                async with asyncio.timeout(timeout_s), db.tenant_transaction(tenant.id) as conn:
                    await pg(conn).execute("SELECT pg_sleep(5)")
            assert await unscoped(db) == []
            assert (await agents_of(db, other_tenant.id))[0] == {other_tenant.id}


async def test_the_api_serves_two_tenants_through_it(
    config, redis, pooled_url, tenant, other_tenant
):
    changed = {"database_url": pooled_url, "database": UNPREPARED}
    app = create_app(config.model_copy(update=changed))
    async with (
        LifespanManager(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client,
    ):

        async def use(who) -> set[str]:
            client_headers = who.headers("admin")
            made = set()
            for _ in range(5):
                body = {"agent": "a", "input": "x"}
                answer = await client.post("/v1/runs", json=body, headers=client_headers)
                assert answer.status_code == 202, answer.text
                made.add(answer.json()["id"])
                listed = await client.get("/v1/runs?limit=100", headers=client_headers)
                assert {r["id"] for r in listed.json()["data"]} == made
            return made

        mine, theirs = await asyncio.gather(use(tenant), use(other_tenant))
        assert mine.isdisjoint(theirs)
        for run_id in mine:
            answer = await client.get(f"/v1/runs/{run_id}", headers=other_tenant.headers("admin"))
            assert answer.status_code == 404
