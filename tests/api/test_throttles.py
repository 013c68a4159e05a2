"""What the API shows of throttled providers, and of the attempts that they put off."""

from __future__ import annotations

from harness_common.core.ids import decode
from harness_common.core.inputs import StepFailed
from harness_common.core.step import Failure
from tests.store.play import WHEN, Play, sql

SCOPE = "openai:org:gpt-4o:abc123"


async def throttle(db, scope=SCOPE, *, until_s=60.0):
    await sql(
        db,
        "INSERT INTO throttles "
        "(scope, until, next_at, interval_s, limit_per_s, code, reason, hits) "
        "VALUES (:s, clock_timestamp() + make_interval(secs => :u), "
        "clock_timestamp() + make_interval(secs => :u), 1.1, 1.0, 'LIMITED', 'slow down', 2)",
        s=scope,
        u=until_s,
    )


async def delayed_run(api, play, scope=SCOPE):
    """Start a run that its provider has put off."""
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "x"})).json()
    run_id = decode("run", run["id"])
    permit = {"scope": scope, "at": WHEN.isoformat(), "hits": 1}
    failure = Failure("limited", "LIMITED", "slow down", 30.0, scope, permit=permit)
    await play.step(run_id, StepFailed(failure, WHEN))
    return run["id"]


async def test_throttles_are_listed_with_the_tenants_runs(api, db, tenant, other_tenant):
    await throttle(db)
    await throttle(db, "openai:ended:abc", until_s=-60.0)
    play = Play(db, tenant.id)
    for _ in range(2):
        await delayed_run(api, play)
    await delayed_run(api, play, "openai:other:abc")
    (found,) = (await api.get("/v1/throttles")).json()["data"]
    assert found["scope"] == SCOPE
    shown = (found["provider"], found["model"], found["credential"])
    assert shown == ("openai", "org:gpt-4o", "abc123")
    assert found["waiting"] == 2
    assert (found["hits"], found["code"], found["reason"]) == (2, "LIMITED", "slow down")
    theirs = await api.get("/v1/throttles", headers=other_tenant.headers("viewer"))
    assert theirs.json()["data"][0]["waiting"] == 0


async def test_attempts_are_listed_with_their_reasons(api, db, tenant, other_tenant):
    run = await delayed_run(api, Play(db, tenant.id))
    (found,) = (await api.get(f"/v1/runs/{run}/attempts")).json()["data"]
    assert (found["step"], found["attempt"], found["code"]) == (1, 1, "LIMITED")
    assert (found["retry_after_s"], found["scope"]) == (30.0, SCOPE)
    events = (await api.get(f"/v1/runs/{run}/events")).json()["data"]
    (delayed,) = [e for e in events if e["type"] == "run.delayed"]
    assert delayed["payload"]["scope"] == SCOPE
    assert delayed["payload"]["why"] == "rate_limited"
