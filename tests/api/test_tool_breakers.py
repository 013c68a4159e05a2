"""Which tools fail now: over HTTP, in the client and on the command line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from harness_api.client import AsyncClient
from harness_worker.tools.breakers import Breakers
from tests.store.play import sql


async def break_tool(db, tenant, name="search", *, open_s=60.0, probing=False):
    await sql(
        db,
        "INSERT INTO tool_breakers (tenant_id, tool, state, failures, opens, opened_at, until, "
        "probe_until, reason) VALUES (:t, :n, 'open', 5, 1, clock_timestamp(), "
        "clock_timestamp() + make_interval(secs => :s), "
        "CASE WHEN :p THEN clock_timestamp() + interval '10 seconds' END, 'TIMEOUT: no result')",
        t=tenant.id,
        n=name,
        s=open_s,
        p=probing,
    )


async def test_breakers_are_listed(api, db, tenant, other_tenant):
    await break_tool(db, tenant)
    await break_tool(db, tenant, "fetch", open_s=-1, probing=True)
    await break_tool(db, other_tenant, "theirs")
    await sql(
        db,
        "INSERT INTO tool_breakers (tenant_id, tool, state, failures, successes, reason) "
        "VALUES (:t, 'a', 'closed', 1, 7, 'TRANSIENT: cut')",
        t=tenant.id,
    )
    data = (await api.get("/v1/tools/breakers")).json()["data"]
    assert [(b["tool"], b["state"]) for b in data] == [
        ("fetch", "half_open"), ("search", "open"), ("a", "closed"),
    ]  # fmt: skip
    assert (data[1]["failures"], data[1]["reason"]) == (5, "TIMEOUT: no result")
    assert data[2]["successes"] == 7


async def test_a_reset_is_heard_by_workers_and_kept_in_the_audit(api, services, db, tenant):
    await break_tool(db, tenant)
    breakers = Breakers(db, None, lambda: datetime.now(UTC), services.config.tool)
    await breakers.look()
    assert breakers.open
    async with services.channel.worker_signals(tenant.id) as signals:
        answer = await api.post("/v1/tools/breakers/search/reset")
        assert (answer.status_code, answer.json()["state"]) == (200, "closed")
        async for signal in signals:
            breakers.heard(signal["breaker"])
            break
    assert not breakers.open
    (entry,) = [e for e in (await api.get("/v1/audit")).json()["data"] if e["target"] == "search"]
    assert (entry["action"], entry["detail"]) == ("tool.breaker_reset", {"was": "open"})
    again = await api.post("/v1/tools/breakers/search/reset")
    assert again.status_code == 404
    assert "harness tools breakers" in again.json()["detail"]


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("operator", 200)])
async def test_who_may_reset(api, db, tenant, role, status):
    await break_tool(db, tenant)
    headers = tenant.headers(role)
    assert (await api.get("/v1/tools/breakers", headers=headers)).status_code == 200
    answer = await api.post("/v1/tools/breakers/search/reset", headers=headers)
    assert answer.status_code == status


async def test_a_tenant_resets_only_its_own(api, db, tenant, other_tenant):
    await break_tool(db, tenant)
    theirs = other_tenant.headers("admin")
    answer = await api.post("/v1/tools/breakers/search/reset", headers=theirs)
    assert answer.status_code == 404
    assert len(await sql(db, "TABLE tool_breakers")) == 1


async def test_the_client_and_the_command_show_and_reset(url, db, tenant):
    await break_tool(db, tenant)
    key = tenant.keys["admin"]
    async with AsyncClient(url, key) as client:
        (found,) = [b async for b in client.tools.breakers()]
        assert (found.tool, found.state) == ("search", "open")
    environment = {**os.environ, "HARNESS_API_URL": url, "HARNESS_API_KEY": key}

    async def run(*args):
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).parent / "harness", "tools", *args,
            env=environment, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode, out.decode()

    code, shown = await run("breakers", "--json")
    assert (code, json.loads(shown)["data"][0]["tool"]) == (0, "search")
    assert "TIMEOUT: no result" in (await run("breakers"))[1]
    assert await run("reset-breaker", "search") == (0, "search is called again\n")
    assert (await run("reset-breaker", "search"))[0] == 1
    assert (await run("breakers"))[1] == "No tool has failed lately.\n"
