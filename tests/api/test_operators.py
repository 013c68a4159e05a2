"""What whoever runs the platform sees: all tenants and their limits, what a worker process does."""

from __future__ import annotations

from uuid import uuid4

import pytest

from harness_common.core.ids import decode, encode
from tests.fakes.tenant import make_tenant
from tests.store.play import make_worker, say, sql


@pytest.fixture
async def operator(db):
    """Make a tenant whose keys may see and change what concerns all tenants."""
    made = await make_tenant(db, "ops")
    async with db.connection() as conn:
        await conn.execute("UPDATE tenants SET operator = true WHERE name = 'ops'")
    return made


async def test_an_operator_lists_all_tenants_with_what_they_have_going(api, operator, tenant):
    await api.post("/v1/runs", json={"agent": "a", "input": "x"})
    headers = operator.headers("admin")
    found = (await api.get("/v1/platform/tenants", headers=headers)).json()["data"]
    by_name = {t["name"]: t for t in found}
    assert set(by_name) == {"first", "ops"}
    assert by_name["first"] == (await api.get("/v1/tenant")).json() | {
        "slot_seconds": by_name["first"]["slot_seconds"]
    }
    assert by_name["first"]["running"] == 1
    first = (await api.get("/v1/platform/tenants?limit=1", headers=headers)).json()
    rest = await api.get(
        f"/v1/platform/tenants?limit=1&cursor={first['next_cursor']}", headers=headers
    )
    assert [t["id"] for t in first["data"] + rest.json()["data"]] == [t["id"] for t in found]
    assert rest.json()["next_cursor"] is None


async def test_an_operator_changes_the_limits_of_a_tenant_and_both_audits_say_so(
    api, operator, tenant
):
    target = encode("tenant", tenant.id)
    path = f"/v1/platform/tenants/{target}/limits"
    headers = operator.headers("admin")
    changes = {"max_running": 7, "weight": 2.5, "tokens_per_day": 1000}
    answer = await api.patch(path, json=changes, headers=headers)
    assert answer.status_code == 200, answer.text
    mine = (await api.get("/v1/tenant")).json()
    assert mine["limits"] == answer.json()["limits"]
    assert {k: mine["limits"][k] for k in changes} == changes
    cleared = await api.patch(path, json={"tokens_per_day": None}, headers=headers)
    assert cleared.json()["limits"]["tokens_per_day"] is None
    assert cleared.json()["limits"]["max_running"] == 7
    wanted = {"from": 1000, "to": None}
    mine_key = encode("api_key", operator.rows["admin"]["id"])
    for who, key in (("operator", None), (mine_key, headers)):
        entry = (await api.get("/v1/audit?action=tenant.set_limits", headers=key)).json()["data"][0]
        assert entry["actor"] == who
        assert (entry["target"], entry["detail"]) == (target, {"tokens_per_day": wanted})


async def test_nobody_else_sees_or_changes_them(api, operator, tenant, db, database_url):
    assert (await api.get("/v1/platform/tenants")).status_code == 403
    path = f"/v1/platform/tenants/{encode('tenant', operator.id)}/limits"
    assert (await api.patch(path, json={"max_running": 1})).status_code == 403
    refused = await api.patch(path, json={"weight": 2}, headers=operator.headers("viewer"))
    assert refused.status_code == 403
    missing = f"/v1/platform/tenants/{encode('tenant', uuid4())}/limits"
    for body in ({}, {"weight": 2}):
        gone = await api.patch(missing, json=body, headers=operator.headers("admin"))
        assert gone.status_code == 404
    async with db.tenant_transaction(tenant.id) as conn:  # the database itself refuses as well
        for call in (
            "SELECT count(*) AS n FROM platform_tenant_list(NULL, NULL, 50)",
            f"SELECT count(platform_tenant_limit('{operator.id}', '{{\"weight\": 9}}', 'x')) AS n",
        ):
            (row,) = await (await conn.execute(call)).fetchall()
            assert row["n"] == 0
    (slots,) = await sql(db, "SELECT weight FROM tenant_slots WHERE tenant_id = :t", t=operator.id)
    assert slots["weight"] == 1


async def test_the_runs_of_a_worker_are_the_tenants_own_with_their_leases(
    api, play, db, redis, config, tenant, other_tenant
):
    play.worker = await make_worker(db)
    path = f"/v1/workers/{encode('worker', play.worker)}/runs"
    assert (await api.get(path)).json() == {"data": [], "next_cursor": None}
    ids = []
    for _ in range(2):
        run = (await api.post("/v1/runs", json={"agent": "a", "input": "x"})).json()
        ids.append(run["id"])
        await play.claim(decode("run", run["id"]))
    key = f"{config.redis.prefix}:lease:{decode('run', ids[0]).hex}"
    await redis.set(key, "somebody", px=9_000)
    found = (await api.get(path)).json()["data"]
    assert [r["run_id"] for r in found] == ids
    assert (found[0]["agent"], found[0]["status"], found[0]["next_kind"]) == (
        "a",
        "running",
        "model",
    )
    assert 8 < found[0]["lease_left_s"] <= 9
    assert found[1]["lease_left_s"] is None
    assert 0 <= found[0]["held_s"] < 60
    theirs = await api.get(path, headers=other_tenant.headers("admin"))
    assert theirs.json()["data"] == []
    unknown = await api.get(f"/v1/workers/{encode('worker', uuid4())}/runs")
    assert (unknown.status_code, unknown.json()["field"]) == (404, "worker_id")
    await play.settle(await play.read(decode("run", ids[0])), say())
    assert [r["run_id"] for r in (await api.get(path)).json()["data"]] == ids[1:]
