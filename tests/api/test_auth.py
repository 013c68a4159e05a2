"""Keys, roles, scopes, expiry and rotation; and that no route is without a permission."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from harness_api.app import check_permissions, create_app
from harness_api.auth import PERMISSIONS, ROLES, Caller, permission_of, requires
from harness_common.core.ids import encode
from harness_common.settings import Settings
from harness_common.store import keys
from tests.fakes.tenant import PEPPER

RUN = {"agent": "a", "input": "hi"}


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def test_every_route_under_v1_states_a_permission():
    app = create_app(Settings())
    under_v1 = [r for r in app.routes if getattr(r, "path", "").startswith("/v1")]
    assert len(under_v1) > 30
    bare = [r for r in under_v1 if not isinstance(r, APIRoute) or permission_of(r) is None]
    assert bare == []


def test_the_walk_over_routes_sees_a_bare_one():
    router = APIRouter()

    @router.get("/v1/open")
    async def nobody_asks() -> None: ...

    @router.get("/v1/guarded")
    async def somebody_asks(caller: Annotated[Caller, requires("runs:read")]) -> None: ...

    app = FastAPI()
    app.router.routes.extend(router.routes)
    with pytest.raises(RuntimeError, match=r"/v1/open$"):
        check_permissions(app)
    included = FastAPI()
    included.include_router(router)
    with pytest.raises(RuntimeError):
        check_permissions(included)


async def test_every_route_under_v1_refuses_a_request_without_a_key(app, api):
    for route in app.routes:
        if not getattr(route, "path", "").startswith("/v1"):
            continue
        path = route.path.replace("{name}", "a").replace("{version}", "1")
        for part in (
            "run",
            "session",
            "artifact",
            "key",
            "approval",
            "webhook",
            "delivery",
            "memory",
            "worker",
            "tenant",
            "erasure",
        ):
            kind = "api_key" if part == "key" else part
            shown = encode(kind, UUID(int=7))
            path = path.replace(f"{{{part}_id}}", shown)
        for name in ("schedule", "server", "tool"):
            path = path.replace(f"{{{name}}}", "s")
        for method in route.methods:
            answer = await api.request(method, path, headers={"Authorization": ""})
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "Bearer",
        "Bearer hk_",
        "Bearer hk_abc",
        "Bearer hk_abc_",
        "Basic abc",
        "Bearer hk_é_x",
    ],
)
async def test_a_malformed_key_is_refused(api, text):
    answer = await api.get("/v1/runs", headers={"Authorization": text.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.json()["code"] == "UNAUTHENTICATED"


async def test_a_wrong_secret_is_refused_also_while_the_key_is_cached(api, tenant):
    good = tenant.keys["viewer"]
    assert (await api.get("/v1/runs", headers=bearer(good))).status_code == 200
    assert (await api.get("/v1/runs", headers=bearer(good + "x"))).status_code == 401
    assert (await api.get("/v1/runs", headers=bearer(good[:-1]))).status_code == 401


async def test_a_wrong_secret_marks_nothing_as_used(api, tenant, db):
    await api.get("/v1/runs", headers=bearer(tenant.keys["viewer"] + "x"))
    row = await keys.read_key(db, tenant.id, tenant.rows["viewer"]["id"])
    assert row["last_used_at"] is None
    await api.get("/v1/runs", headers=bearer(tenant.keys["viewer"]))


async def test_use_is_noted(api, tenant, db):
    await api.get("/v1/runs", headers=bearer(tenant.keys["viewer"]))
    row = await keys.read_key(db, tenant.id, tenant.rows["viewer"]["id"])
    assert row["last_used_at"] is not None


async def test_the_secret_is_not_stored(api, db, tenant):
    made = (await api.post("/v1/api-keys", json={"name": "k", "role": "viewer"})).json()
    secret = made["secret"].split("_", 2)[2]
    async with db.connection() as conn:
        for table in ("api_keys", "audit"):
            rows = await (await conn.execute(f"SELECT t::text AS line FROM {table} t")).fetchall()
            assert not any(secret in row["line"] for row in rows)
    listed = (await api.get("/v1/api-keys")).json()["data"]
    assert all("secret" not in key for key in listed)


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        ("viewer", "GET", "/v1/runs", 200),
        ("viewer", "POST", "/v1/runs", 403),
        ("viewer", "GET", "/v1/workers", 200),
        ("viewer", "GET", "/v1/audit", 403),
        ("viewer", "GET", "/v1/api-keys", 403),
        ("operator", "POST", "/v1/runs", 202),
        ("operator", "GET", "/v1/audit", 403),
        ("operator", "POST", "/v1/api-keys", 403),
        ("operator", "PATCH", "/v1/tenant/limits", 403),
        ("approver", "POST", "/v1/runs", 403),
        ("approver", "GET", "/v1/runs", 200),
        ("admin", "POST", "/v1/runs", 202),
        ("admin", "GET", "/v1/audit", 200),
        ("admin", "GET", "/v1/api-keys", 200),
    ],
)
async def test_roles(api, tenant, role, method, path, status):
    bodies = {"/v1/runs": RUN, "/v1/api-keys": {"name": "x", "role": "viewer"}}
    bodies["/v1/tenant/limits"] = {"max_running": 3}  # type: ignore[dict-item]
    body = bodies[path] if method != "GET" else None
    answer = await api.request(method, path, json=body, headers=tenant.headers(role))
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["code"] == "DENIED"


async def test_scopes_narrow_a_role(api, tenant):
    narrow = bearer(await tenant.add_key("narrow", "operator", ["runs:read"]))
    assert (await api.get("/v1/runs", headers=narrow)).status_code == 200
    assert (await api.post("/v1/runs", json=RUN, headers=narrow)).status_code == 403
    assert (await api.get("/v1/agents", headers=narrow)).status_code == 403


async def test_scopes_never_widen_a_role(api, tenant):
    sly = bearer(await tenant.add_key("sly", "viewer", ["runs:write", "audit:read"]))
    assert (await api.post("/v1/runs", json=RUN, headers=sly)).status_code == 403
    assert (await api.get("/v1/audit", headers=sly)).status_code == 403


async def test_a_key_cannot_make_a_mightier_one(api, tenant):
    narrow = bearer(await tenant.add_key("narrow", "admin", ["keys:write", "runs:read"]))
    mighty = {"name": "x", "role": "admin"}
    answer = await api.post("/v1/api-keys", json=mighty, headers=narrow)
    assert (answer.status_code, answer.json()["code"]) == (403, "KEY_TOO_POWERFUL")
    same = {"name": "x", "role": "admin", "scopes": ["runs:read"]}
    assert (await api.post("/v1/api-keys", json=same, headers=narrow)).status_code == 201
    admin = encode("api_key", tenant.rows["admin"]["id"])
    answer = await api.post(f"/v1/api-keys/{admin}/rotate", json={}, headers=narrow)
    assert answer.status_code == 403


async def test_a_key_that_expires_makes_none_that_outlives_it(api, tenant):
    brief = bearer(await tenant.add_key("brief", "admin", lives_s=3600.0))
    ends = tenant.rows["brief"]["expires_at"]
    body = {"name": "x", "role": "viewer"}
    for wanted in (None, ends + timedelta(seconds=1)):
        asked = body | ({"expires_at": wanted.isoformat()} if wanted else {})
        answer = await api.post("/v1/api-keys", json=asked, headers=brief)
        assert (answer.status_code, answer.json()["code"]) == (403, "KEY_TOO_POWERFUL")
        assert answer.json()["field"] == "expires_at"
    asked = body | {"expires_at": ends.isoformat()}
    answer = await api.post("/v1/api-keys", json=asked, headers=brief)
    assert answer.status_code == 201
    assert (await api.post("/v1/api-keys", json=body)).status_code == 201, "one that does not may"


async def test_nor_does_the_successor_that_it_makes(api, tenant):
    brief = bearer(await tenant.add_key("brief", "admin", lives_s=3600.0))
    for_ever = (await api.post("/v1/api-keys", json={"name": "k", "role": "viewer"})).json()
    made = await api.post(f"/v1/api-keys/{for_ever['id']}/rotate", json={}, headers=brief)
    assert made.status_code == 201
    ends = tenant.rows["brief"]["expires_at"]
    assert datetime.fromisoformat(made.json()["expires_at"]) == ends


async def test_an_expired_key_is_refused(api, tenant):
    past = datetime.now(UTC) - timedelta(seconds=5)
    expired = bearer(await tenant.add_key("expired", "viewer", expires_at=past))
    assert (await api.get("/v1/runs", headers=expired)).status_code == 401


async def test_a_key_expires_although_it_is_cached(api, tenant, services, db):
    brief = bearer(await tenant.add_key("brief", "viewer", lives_s=3600.0))
    assert (await api.get("/v1/runs", headers=brief)).status_code == 200
    known = services.keyring._known[tenant.rows["brief"]["public_id"]]
    assert known.until - asyncio.get_running_loop().time() <= 3600
    tenant_row = tenant.rows["brief"]
    async with db.connection() as conn:
        await conn.execute(
            "UPDATE api_keys SET expires_at = clock_timestamp() WHERE id = %s", (tenant_row["id"],)
        )
    services.keyring.forget(tenant_row["public_id"])
    assert (await api.get("/v1/runs", headers=brief)).status_code == 401


async def test_a_key_that_would_be_born_expired_is_refused(api):
    body = {"name": "k", "role": "viewer", "expires_at": "2020-01-01T00:00:00Z"}
    answer = await api.post("/v1/api-keys", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "expires_at")
    body["expires_at"] = "2020-01-01T00:00:00"
    answer = await api.post("/v1/api-keys", json=body)
    assert (answer.status_code, answer.json()["field"]) == (422, "expires_at")


async def test_a_revoked_key_ends_at_once_and_revoking_again_is_no_change(api, tenant):
    made = (await api.post("/v1/api-keys", json={"name": "k", "role": "viewer"})).json()
    assert (await api.get("/v1/runs", headers=bearer(made["secret"]))).status_code == 200
    for _ in range(2):
        assert (await api.delete(f"/v1/api-keys/{made['id']}")).status_code == 204
        assert (await api.get("/v1/runs", headers=bearer(made["secret"]))).status_code == 401
    rows = (await api.get("/v1/audit")).json()["data"]
    assert [r["action"] for r in rows if r["target"] == made["id"]].count("api_key.revoke") == 1


async def test_two_keys_live_while_rotating(api, tenant):
    old = (await api.post("/v1/api-keys", json={"name": "k", "role": "operator"})).json()
    path = f"/v1/api-keys/{old['id']}/rotate"
    new = (await api.post(path, json={"overlap_s": 3600})).json()
    assert (new["rotated_from"], new["role"], new["name"]) == (old["id"], "operator", "k")
    for key in (old, new):
        answer = await api.post("/v1/runs", json=RUN, headers=bearer(key["secret"]))
        assert answer.status_code == 202
    again = await api.post(path, json={})
    assert (again.status_code, again.json()["code"]) == (409, "KEY_ALREADY_ROTATED")
    old_now = next(
        k for k in (await api.get("/v1/api-keys")).json()["data"] if k["id"] == old["id"]
    )
    left = datetime.fromisoformat(old_now["expires_at"]) - datetime.now(UTC)
    assert timedelta(minutes=59) < left <= timedelta(hours=1, seconds=5)


async def test_rotating_without_overlap_ends_the_old_key(api):
    old = (await api.post("/v1/api-keys", json={"name": "k", "role": "viewer"})).json()
    await api.get("/v1/runs", headers=bearer(old["secret"]))
    new = (await api.post(f"/v1/api-keys/{old['id']}/rotate", json={"overlap_s": 0})).json()
    assert (await api.get("/v1/runs", headers=bearer(old["secret"]))).status_code == 401
    assert (await api.get("/v1/runs", headers=bearer(new["secret"]))).status_code == 200
    answer = await api.post(f"/v1/api-keys/{old['id']}/rotate", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "KEY_NOT_LIVE")


async def test_a_cached_key_costs_no_query(api, services, tenant, monkeypatch):
    await api.get("/v1/runs")
    keyring = services.keyring

    async def never(*_: object) -> None:
        raise AssertionError("the key was looked up")

    monkeypatch.setattr(type(keyring), "_look_up", never)
    assert await keyring.verify(tenant.keys["admin"]) is not None


def test_roles_hold_only_known_permissions():
    assert all(held <= PERMISSIONS for held in ROLES.values())
    assert ROLES["viewer"] < ROLES["operator"] < ROLES["admin"]
    with pytest.raises(ValueError, match="unknown permission"):
        requires("runs:destroy")


def test_a_hash_is_bound_to_its_public_id_and_pepper():
    stored = keys.hash_secret(PEPPER, "one", "secret")
    assert keys.verify(PEPPER, "one", "secret", stored)
    assert not keys.verify(PEPPER, "two", "secret", stored)
    assert not keys.verify(b"other", "one", "secret", stored)
