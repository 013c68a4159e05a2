"""The first page: what goes on, and why."""

from __future__ import annotations

import httpx

from harness_common.store.db import Database
from tests.console.conftest import LogIn
from tests.fakes.tenant import Tenant
from tests.store.play import Play, say, sql


async def test_a_newcomer_is_told_the_next_command(visitor: httpx.AsyncClient):
    page = (await visitor.get("/console")).text
    assert "harness runs submit demo" in page
    assert "No worker is alive" in page
    assert "Nothing is queued." in page


async def test_it_counts_what_ended_failed_and_waits(
    visitor: httpx.AsyncClient, play: Play, db: Database
):
    for _ in range(3):
        run_id = await play.start()
        await play.step(run_id, say("done"))
    failed = await play.start()
    await sql(
        db, "UPDATE runs SET status = 'failed', finished_at = clock_timestamp(), "
        "error = '{\"code\": \"BOOM\"}' WHERE id = :r", r=failed,
    )  # fmt: skip
    waits = await play.start()
    await sql(db, "UPDATE runs SET status = 'waiting_input', waiting = '{}' WHERE id = :r", r=waits)
    page = (await visitor.get("/console")).text
    assert "Runs that ended in the last 60 minutes: 3 succeeded, 1 failed, 0 cancelled." in page
    assert "25.0 %" in page
    assert "BOOM" in page
    assert "waiting input" in page
    assert "$0.7500" in page  # three answers at 0.25
    assert "of 3 steps" in page


async def test_it_says_why_runs_are_queued(
    visitor: httpx.AsyncClient, play: Play, db: Database, tenant: Tenant
):
    await sql(db, "UPDATE tenant_slots SET max_running = 1 WHERE tenant_id = :t", t=tenant.id)
    for _ in range(3):
        await play.start()
    await sql(
        db, "INSERT INTO workers (incarnation, name, host, pid, queues, concurrency, version) "
        "VALUES (gen_random_uuid(), 'w', 'h', 1, ARRAY['steps.default'], 10, '')",
    )  # fmt: skip
    page = (await visitor.get("/console")).text
    assert "in line: tenant limit 1 running" in page
    assert "No worker is alive" not in page


async def test_only_the_operators_see_all_tenants(
    login_as: LogIn, visitor: httpx.AsyncClient, db: Database, tenant: Tenant, other_tenant: Tenant
):
    await sql(db, "UPDATE tenants SET operator = true WHERE tenant_id = :t", t=other_tenant.id)
    operators = await login_as(key=other_tenant.keys["admin"])
    assert "first" in (await operators.get("/console")).text
    assert "second" not in (await visitor.get("/console")).text
    services = visitor._transport.app.state.services  # type: ignore[attr-defined]
    async with services.db.tenant_transaction(tenant.id) as conn:
        rows = await (await conn.execute("SELECT * FROM platform_tenants()")).fetchall()
    assert rows == []
