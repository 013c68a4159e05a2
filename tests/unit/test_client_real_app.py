"""The client against the real API: that both mean the same shapes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from harness_api.client import ApiError, AsyncClient
from harness_common.core.ids import decode
from harness_common.core.policy import Facts, decide
from harness_common.core.step import ToolsUnknown
from tests.store.play import Play, say, sql


@pytest.fixture
async def client(app, tenant) -> AsyncIterator[AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with AsyncClient("http://api", tenant.keys["admin"], transport=transport) as made:
        yield made


@pytest.fixture
def play(db, tenant) -> Play:
    """Play the worker of the tenant's runs."""
    return Play(db, tenant.id)


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


async def test_policy(client, play, db):
    first = await client.policy.set("rules: [{name: r, match: {tools: [pay]}, then: deny}]")
    second = await client.policy.set("taint: deny")
    assert [v.version async for v in client.policy.versions()] == [2, 1]
    assert await client.policy.get(version=1) == first
    assert await client.policy.get() == second
    assert (await client.policy.get("a")).version == 0
    assert (await client.policy.set("", "a")).agent == "a"
    tool = {"name": "pay", "effect": "write"}
    found = await client.policy.test(tool, {"usd": 1}, {"tainted": True, "role": "admin"})
    assert (found.verdict, found.rule) == ("deny", "builtin.taint")
    assert found.looks[-1].matched
    run = await client.runs.create("a", "hi")
    await play.step(decode("run", run.id), say(tools=["look"]))
    decision = {"policy": json.dumps(decide(Facts("look")).to_json())}
    await sql(db, "UPDATE tool_calls SET policy = cast(:policy AS jsonb)", **decision)
    told = await client.policy.explain(run.id, "2.0")
    assert (told.call, told.verdict, told.same) == ("2.0", "allow", False), "other arguments"
    with pytest.raises(ApiError) as caught:
        await client.policy.set("rules: [{name: r}]")
    assert (caught.value.code, caught.value.field) == ("POLICY_INVALID", "/rules/0/then")


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


async def test_control(client, play):
    run = await client.runs.create("a", "hi", concurrency_key="k", concurrency_max=3)
    assert (run.held_for, run.concurrency_key) == ("key", "k")
    await client.runs.cancel(run.id)
    run = await client.runs.create("a", "hi")
    assert (await client.runs.steer(run.id, "and hurry")).status == "running"
    again = await client.runs.create("a", "x", session_id=run.session_id, on_busy="steer")
    assert again.id == run.id
    assert (await client.runs.pause(run.id, "lunch")).status == "paused"
    assert (await client.runs.resume(run.id)).status == "queued"
    assert [r.id for r in await client.sessions.cancel(run.session_id, "enough")] == [run.id]
    assert (await client.runs.retry(run.id, 1)).forked_from.step == 0
    fork = await client.runs.fork(run.id, step=0, input="other", model="scripted/x", tools=["t"])
    assert fork.overrides == {"model": "scripted/x", "tools": ["t"]}
    forks = (await client.runs.lineage(run.id)).forks
    assert [f.relation for f in forks] == ["retry", "fork"]
    assert [r.id async for r in client.runs.list(retried=True, stop_reason="cancelled")] == [run.id]


async def test_effects(client, play, db):
    run = await client.runs.create("a", "hi")
    run_id = decode("run", run.id)
    await play.step(run_id, say(tools=["pay"]))
    await sql(db, "UPDATE tool_calls SET status = 'unknown', result = 'no result in 10 s'")
    await play.step(run_id, ToolsUnknown((), (0,)))
    assert (await client.runs.get(run.id)).unknown_calls == ["2.0"]
    (effect,) = [e async for e in client.effects.list(run_id=run.id)]
    assert (effect.call, effect.why) == ("2.0", "no result in 10 s")
    assert await client.effects.get(run.id, "2.0") == effect
    done = await client.effects.resolve(run.id, "2.0", "succeeded", "I saw it", "receipt 7")
    assert (done.result, done.run_status) == ("receipt 7", "queued")
    assert done.resolution["result_before"] == "no result in 10 s"
    with pytest.raises(ApiError) as caught:
        await client.effects.resolve(run.id, "2.0", "failed", "I did not")
    assert (caught.value.status, caught.value.code) == (409, "EFFECT_RESOLVED")
    assert "I saw it" in caught.value.message
