"""The audit trail: filtered by who, what, whereof and when; in pages; by an index."""

from __future__ import annotations

import pytest

from harness_common.core.ids import encode
from tests.store.play import sql


@pytest.fixture
async def trail(api, tenant):
    """Leave rows of two keys, three actions and several targets."""
    for name in ("x", "y"):
        await api.post("/v1/agents", json={"name": name, "spec": {}})
    headers = tenant.headers("operator")
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "x"}, headers=headers)).json()
    await api.post(f"/v1/runs/{run['id']}/cancel", headers=headers)
    return run


async def rows(api, **params):
    answer = await api.get("/v1/audit", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


async def test_it_is_filtered_by_actor_action_target_and_time(api, trail, tenant):
    operator = encode("api_key", tenant.rows["operator"]["id"])
    by_actor = await rows(api, actor=operator)
    assert [e["action"] for e in by_actor] == ["run.cancel", "run.create"]
    assert {e["target"] for e in await rows(api, action="agent.put")} == {"a@1", "x@1", "y@1"}
    assert [e["action"] for e in await rows(api, target=trail["id"])] == [
        "run.cancel", "run.create",
    ]  # fmt: skip
    assert [e["target"] for e in await rows(api, action="run.create")] == [trail["id"]]
    assert await rows(api, action="run.create", target="x@1") == []
    first = by_actor[-1]["at"]
    assert {e["action"] for e in await rows(api, since=first)} == {"run.cancel", "run.create"}
    assert "run.create" not in {e["action"] for e in await rows(api, until=first)}


async def test_a_filtered_list_is_paged(api, trail):
    first = (await api.get("/v1/audit?action=agent.put&limit=2")).json()
    rest = await rows(api, action="agent.put", limit=2, cursor=first["next_cursor"])
    assert [e["target"] for e in first["data"] + rest] == ["y@1", "x@1", "a@1"]


@pytest.mark.parametrize(
    ("field", "value"), [("action", "x"), ("since", "soon"), ("actor", ""), ("who", "me")]
)
async def test_a_filter_that_is_none_is_named(api, tenant, field, value):
    answer = await api.get("/v1/audit", params={field: value})
    assert (answer.status_code, answer.json()["field"]) == (422, field)


async def test_a_rare_action_among_many_starts_is_found_by_its_index(api, db, tenant):
    await sql(
        db,
        "INSERT INTO audit (tenant_id, actor, action, target) SELECT :t, 'key_x', 'run.create', "
        "'run_' || n FROM generate_series(1, 20000) n",
        t=tenant.id,
    )
    await sql(db, "ANALYZE audit")
    for where, index in (
        ("action = 'run.cancel' AND action <> 'run.create'", "audit_action_idx"),
        ("target = 'run_7'", "audit_target_idx"),
        ("actor = 'nobody'", "audit_actor_idx"),
    ):
        plan = await sql(
            db,
            f"EXPLAIN SELECT * FROM audit WHERE tenant_id = :t AND {where} "
            "ORDER BY id DESC LIMIT 50",
            t=tenant.id,
        )
        assert index in str(plan), plan
