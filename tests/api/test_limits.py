"""Limits as data: who may change which, what is kept, what is written down."""

from __future__ import annotations

import pytest

from tests.fakes.tenant import make_tenant

NONE = {"starts_per_s": None, "steps_per_s": None, "tokens_per_day": None, "cost_usd_per_day": None}


@pytest.fixture
async def operator(db):
    """Give the headers of a key that may see and change what concerns all tenants."""
    made = await make_tenant(db, "ops")
    async with db.connection() as conn:
        await conn.execute("UPDATE tenants SET operator = true WHERE name = 'ops'")
    return made


async def test_any_subset_of_a_tenants_limits_is_changed_and_the_rest_stays(api):
    changes = {"weight": 3, "starts_per_s": 12.5, "tokens_per_day": 1000}
    answer = await api.patch("/v1/tenant/limits", json=changes)
    assert answer.status_code == 200
    assert answer.json()["limits"] == NONE | {"max_running": 100} | changes
    answer = await api.patch("/v1/tenant/limits", json={"starts_per_s": None, "max_running": 7})
    wanted = {"max_running": 7, "weight": 3, "tokens_per_day": 1000}
    assert answer.json()["limits"] == NONE | wanted
    assert (await api.get("/v1/tenant")).json()["limits"] == NONE | wanted
    assert answer.json()["slot_seconds"] == 0


async def test_a_change_is_in_the_audit_trail_and_no_change_is_not(api):
    await api.patch("/v1/tenant/limits", json={"weight": 2})
    await api.patch("/v1/tenant/limits", json={})
    found = [e for e in (await api.get("/v1/audit")).json()["data"] if "limits" in e["action"]]
    assert [(e["action"], e["detail"]) for e in found] == [
        ("tenant.set_limits", {"weight": {"from": 1.0, "to": 2.0}})
    ]


@pytest.mark.parametrize(
    "body",
    [
        {"weight": 0},
        {"weight": 1001},
        {"weight": None},
        {"max_running": None},
        {"max_running": -1},
        {"starts_per_s": 0},
        {"tokens_per_day": 1.5},
        {"nonsense": 1},
    ],
)
async def test_what_is_no_limit_is_refused(api, body):
    assert (await api.patch("/v1/tenant/limits", json=body)).status_code == 422


async def test_only_an_operators_key_sees_and_changes_the_platforms_limits(api, operator, tenant):
    assert (await api.get("/v1/platform/limits")).status_code == 403
    assert (await api.patch("/v1/platform/limits", json={"max_running": 1})).status_code == 403
    headers = operator.headers("admin")
    answer = await api.patch(
        "/v1/platform/limits", json={"max_running": 9, "steps_per_s": 4}, headers=headers
    )
    assert answer.status_code == 200
    assert answer.json()["limits"] == NONE | {"max_running": 9, "steps_per_s": 4}
    cleared = await api.patch("/v1/platform/limits", json={"max_running": None}, headers=headers)
    assert cleared.json()["limits"] == NONE | {"max_running": None, "steps_per_s": 4}
    shown = (await api.get("/v1/platform/limits", headers=headers)).json()
    assert (shown["limits"], shown["running"], shown["queued"]) == (cleared.json()["limits"], 0, 0)
    actions = [e["action"] for e in (await api.get("/v1/audit", headers=headers)).json()["data"]]
    assert actions.count("platform.set_limits") == 2
    assert (
        await api.get("/v1/platform/limits", headers=operator.headers("operator"))
    ).status_code == 403, "a role below admin may not"


async def test_a_key_of_another_tenant_cannot_be_given_the_platform(api, operator):
    made = await api.post("/v1/api-keys", json={"name": "x", "role": "admin"})
    assert made.status_code == 201, "an admin may make an admin of its own tenant"
    mine = {"Authorization": f"Bearer {made.json()['secret']}"}
    assert (await api.get("/v1/platform/limits", headers=mine)).status_code == 403
    narrow = {"name": "n", "role": "admin", "scopes": ["keys:write"]}
    key = await api.post("/v1/api-keys", json=narrow, headers=operator.headers("admin"))
    sly = {"Authorization": f"Bearer {key.json()['secret']}"}
    answer = await api.post("/v1/api-keys", json={"name": "y", "role": "admin"}, headers=sly)
    assert answer.json()["code"] == "KEY_TOO_POWERFUL"
