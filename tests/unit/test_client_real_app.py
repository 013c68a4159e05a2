"""The client against the real API: that both mean the same shapes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from harness_api.client import ApiError, AsyncClient


@pytest.fixture
async def client(app, tenant) -> AsyncIterator[AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with AsyncClient("http://api", tenant.keys["admin"], transport=transport) as made:
        yield made


async def test_runs(client):
    run = await client.runs.create("a", "hi", tags={"k": "v"}, idempotency_key="one")
    again = await client.runs.create("a", "hi", tags={"k": "v"}, idempotency_key="one")
    assert again.id == run.id
    assert [r.id async for r in client.runs.list(tags={"k": "v"}, status="running")] == [run.id]
    assert (await client.runs.cancel(run.id, "enough")).status == "cancelled"
    assert (await client.runs.wait(run.id, 5)).stop_reason == "cancelled"
    stored = [e async for e in client.runs.events(run.id)]
    assert [e async for e in client.runs.stream(run.id)] == stored
    assert [e.seq async for e in client.runs.stream(run.id, after=1)] == [e.seq for e in stored[1:]]
    for details in (client.runs.steps, client.runs.tool_calls, client.runs.checkpoints):
        assert [d async for d in details(run.id)] == []
    assert [m.role async for m in client.runs.messages(run.id)] == ["user"]
    assert [a async for a in client.runs.artifacts(run.id)] == []
    assert (await client.runs.tree(run.id)).session == run.session_id
    assert (await client.runs.retry(run.id)).forked_from.run_id == run.id


async def test_pages(client):
    made = [(await client.runs.create("a", f"run {n}")).id for n in range(3)]
    assert [r.id async for r in client.runs.list()] == made[::-1]
    assert [r.id async for r in client.runs.list(limit=2)] == made[:0:-1]


async def test_agents_and_sessions(client):
    first = await client.agents.apply("b", {"model": "scripted/demo"})
    assert (await client.agents.apply("b", {"model": "scripted/demo"})).id == first.id
    await client.agents.apply("b", {"model": "scripted/demo", "system": "s"})
    assert (await client.agents.get("b")).version == 2
    assert [a.version async for a in client.agents.versions("b")] == [2, 1]
    assert {a.name async for a in client.agents.list()} == {"a", "b"}
    session = await client.sessions.create("t", user_id="u", metadata={"x": 1})
    assert [s.id async for s in client.sessions.list(user_id="u")] == [session.id]
    assert (await client.sessions.close(session.id)).status == "closed"


async def test_keys_tenant_audit_and_health(client):
    key = await client.keys.create("ci", "viewer", scopes=["runs:read"])
    following = await client.keys.rotate(key.id, overlap_s=0)
    await client.keys.revoke(following.id)
    assert {key.id, following.id} <= {k.id async for k in client.keys.list()}
    assert (await client.tenant.set_limits(max_running=7)).limits["max_running"] == 7
    assert "api_key.create" in {e.action async for e in client.audit.list()}
    assert [w async for w in client.workers.list()] == []
    assert (await client.health.ready()).status == "ready"


async def test_schedules(client):
    made = await client.schedules.create("s", "a", "hi", cron="@daily", run={"priority": 2})
    assert (made.run["priority"], len(made.next)) == (2, 5)
    assert (await client.schedules.get(made.id)).name == "s"
    assert [s.id async for s in client.schedules.list()] == [made.id]
    assert (await client.schedules.update("s", {"overlap": "allow"})).overlap == "allow"
    assert (await client.schedules.pause("s", "why")).pause_reason == "why"
    assert (await client.schedules.resume("s")).status == "active"
    fired = await client.schedules.trigger("s", overlap="skip")
    assert (await client.runs.get(fired.run_id)).tags == {"schedule": "s"}
    assert [f.run_id async for f in client.schedules.firings("s")] == [fired.run_id]
    await client.schedules.delete("s")
    assert [s async for s in client.schedules.list()] == []


async def test_refusals(client):
    with pytest.raises(ApiError) as caught:
        await client.runs.get("run_" + "0" * 32)
    assert (caught.value.code, caught.value.status) == ("NOT_FOUND", 404)
    assert caught.value.request_id
    await client.runs.create("a", "hi", idempotency_key="k")
    with pytest.raises(ApiError) as caught:
        await client.runs.create("a", "other", idempotency_key="k")
    assert caught.value.code == "IDEMPOTENCY_KEY_REUSED"
