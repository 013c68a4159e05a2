"""Secrets over HTTP: set, listed, deleted, and never given back; encryption and its keys."""

from __future__ import annotations

import httpx
import pytest
from asgi_lifespan import LifespanManager

from harness_api.app import create_app
from harness_api.client import AsyncClient
from harness_common.crypto.keks import make_kek
from harness_common.settings import SecretSettings, Settings
from tests.fakes.tenant import make_tenant

VALUE = "hunter-22-and-more"
OLD, NEW = make_kek("old"), make_kek("new")


@pytest.fixture
def config(config: Settings) -> Settings:
    return config.model_copy(update={"secrets": SecretSettings(kek=OLD)})


def with_keks(config, text):
    return create_app(config.model_copy(update={"secrets": SecretSettings(kek=text)}))


async def put(api, name="TOKEN", value=VALUE, **more):
    return await api.put(f"/v1/secrets/{name}", json={"value": value}, **more)


async def test_a_secret_is_set_listed_and_deleted_and_never_given_back(api, tenant):
    first = await put(api)
    assert first.status_code == 200
    assert first.json()["version"] == 1
    again = await put(api, value=VALUE + "2")
    assert (again.json()["version"], again.json()["last_used_at"]) == (2, None)
    listed = await api.get("/v1/secrets")
    assert [(s["name"], s["version"]) for s in listed.json()["data"]] == [("TOKEN", 2)]
    audit = await api.get("/v1/audit")
    assert [e["action"] for e in audit.json()["data"]][:2] == ["secret.set", "secret.set"]
    for answer in (first, again, listed, audit):
        assert VALUE not in answer.text
    assert (await api.delete("/v1/secrets/TOKEN")).status_code == 204
    gone = await api.delete("/v1/secrets/TOKEN")
    assert (gone.status_code, gone.json()["code"]) == (404, "SECRET_NOT_FOUND")
    assert (await api.get("/v1/secrets")).json()["data"] == []


async def test_no_route_gives_a_value(app):
    """Whoever adds one has to think again."""
    methods = {
        method
        for route in app.routes
        if getattr(route, "path", "").startswith("/v1/secrets/")
        for method in route.methods
    }
    assert methods == {"PUT", "DELETE"}
    schema = app.openapi()["components"]["schemas"]["SecretView"]["properties"]
    assert not {"value", "secret", "text"} & schema.keys()


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("TOKEN", {"value": "short"}, "value"),
        ("TOKEN", {"value": "request.served"}, "value"),
        ("TOKEN", {"value": "tenant_id"}, "value"),
        ("TOKEN", {"value": "Password"}, "value"),
        ("TOKEN", {"value": "run.needs_newer_version"}, "value"),
        ("TOKEN", {"value": "x" * 65_537}, "value"),
        ("TOKEN", {"value": 123_456_789}, "value"),
        ("TOKEN", {"value": VALUE, "more": 1}, "more"),
        ("TOKEN", {}, "value"),
        ("a b", {"value": VALUE}, "name"),
        (".a", {"value": VALUE}, "name"),
        ("a.", {"value": VALUE}, "name"),
        ("x" * 65, {"value": VALUE}, "name"),
    ],
)
async def test_what_is_refused_is_named_but_not_repeated(api, name, body, field):
    answer = await api.put(f"/v1/secrets/{name}", json=body)
    assert answer.status_code == 422
    assert answer.json()["field"] == field
    assert "123456789" not in answer.text
    assert VALUE not in answer.text


@pytest.mark.parametrize(
    ("role", "method", "path", "status"),
    [
        ("viewer", "GET", "/v1/secrets", 200),
        ("viewer", "PUT", "/v1/secrets/TOKEN", 403),
        ("operator", "PUT", "/v1/secrets/TOKEN", 403),
        ("operator", "DELETE", "/v1/secrets/TOKEN", 403),
        ("viewer", "GET", "/v1/tenant/encryption", 200),
        ("operator", "PUT", "/v1/tenant/encryption", 403),
        ("admin", "GET", "/v1/platform/keys", 403),
        ("admin", "POST", "/v1/platform/keys/rewrap", 403),
    ],
)
async def test_who_may(api, tenant, role, method, path, status):
    body = {"PUT": {"value": VALUE} if "secrets" in path else {"on": True}}.get(method)
    answer = await api.request(method, path, headers=tenant.headers(role), json=body)
    assert answer.status_code == status, answer.text


async def test_tenants_see_their_own(api, other_tenant):
    await put(api)
    theirs = other_tenant.headers("admin")
    assert (await api.get("/v1/secrets", headers=theirs)).json()["data"] == []
    assert (await api.delete("/v1/secrets/TOKEN", headers=theirs)).status_code == 404
    assert (await put(api, headers=theirs)).json()["version"] == 1


async def test_pages_by_name(api):
    for name in ("C", "A", "B"):
        await put(api, name)
    first = (await api.get("/v1/secrets?limit=2")).json()
    assert [s["name"] for s in first["data"]] == ["A", "B"]
    rest = (await api.get("/v1/secrets", params={"cursor": first["next_cursor"]})).json()
    assert ([s["name"] for s in rest["data"]], rest["next_cursor"]) == (["C"], None)


async def test_without_a_key_it_says_what_to_do(config, db, redis, tenant):
    app = create_app(config.model_copy(update={"secrets": SecretSettings()}))
    async with LifespanManager(app):
        transport = httpx.ASGITransport(app)
        headers = tenant.headers("admin")
        async with httpx.AsyncClient(
            transport=transport, base_url="http://a", headers=headers
        ) as api:
            for answer in (
                await put(api),
                await api.put("/v1/tenant/encryption", json={"on": True}),
            ):
                assert answer.status_code == 503
                assert answer.json()["code"] == "KEY_ENCRYPTION_KEY_MISSING"
                assert "HARNESS_SECRETS__KEK" in answer.json()["detail"]
            assert (await api.get("/v1/secrets")).json()["data"] == []


async def test_encryption_is_turned_on_and_off(api):
    assert (await api.get("/v1/tenant/encryption")).json() == {
        "on": False, "since": None, "data_key": None,
    }  # fmt: skip
    on = (await api.put("/v1/tenant/encryption", json={"on": True})).json()
    assert (on["on"], on["data_key"]["version"], on["data_key"]["kek"]) == (True, 1, "old")
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "said"})).json()
    assert run["input"] == "said"
    same = (await api.put("/v1/tenant/encryption", json={"on": True})).json()
    assert same["since"] == on["since"]
    fresh = (await api.put("/v1/tenant/encryption", json={"on": True, "new_key": True})).json()
    assert fresh["data_key"]["version"] == 2
    off = (await api.put("/v1/tenant/encryption", json={"on": False})).json()
    assert (off["on"], off["since"]) == (False, None)
    assert (await api.get(f"/v1/runs/{run['id']}")).json()["input"] == "said"
    entries = (await api.get("/v1/audit")).json()["data"]
    found = [e["detail"] for e in entries if e["action"] == "tenant.set_encryption"]
    assert found == [{"on": False}, {"on": True, "new_key": True}, {"on": True}, {"on": True}]


async def test_an_operator_rewraps_with_the_client(api, config, db, redis, tenant):
    await put(api)
    ops = await make_tenant(db, "ops")
    async with db.connection() as conn:
        await conn.execute("UPDATE tenants SET operator = true WHERE name = 'ops'")
    app = with_keks(config, f"{NEW},{OLD}")
    async with LifespanManager(app):
        transport = httpx.ASGITransport(app)
        async with AsyncClient("http://api", ops.keys["admin"], transport=transport) as client:
            before = await client.secrets.keys()
            assert (before.current, before.left, before.data_keys) == ("new", 1, {"old": 1})
            done = await client.secrets.rewrap()
            assert (done.rewrapped, done.left, done.data_keys) == (1, 0, {"new": 1})
            assert (await client.secrets.rewrap()).rewrapped == 0
            assert [e.action async for e in client.audit.list(1)] == ["platform.rewrap_keys"]
        async with AsyncClient("http://api", tenant.keys["admin"], transport=transport) as client:
            assert (await client.secrets.set("TOKEN", VALUE)).version == 2
            assert [s.name async for s in client.secrets.list()] == ["TOKEN"]
            key = (await client.tenant.set_encryption(True)).data_key
            assert key is not None
            assert key.kek == "new"
            assert (await client.tenant.encryption()).on is True
            await client.secrets.delete("TOKEN")
