"""Memories over HTTP and through the client: kept, found, deleted, and never another tenant's."""

from __future__ import annotations

import httpx
import pytest

from harness_api.client import ApiError, AsyncClient
from harness_common.settings import MemorySettings
from tests.store.play import sql

NS = {"namespace": "a"}


@pytest.fixture
def config(config):
    return config.model_copy(update={"memory": MemorySettings(max_facts=5)})


@pytest.fixture
async def other_api(app, other_tenant):
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://api",
        headers=other_tenant.headers("admin"),
    ) as client:  # fmt: skip
        yield client


def client_of(app, tenant, role):
    return AsyncClient("http://api", tenant.keys[role], transport=httpx.ASGITransport(app))


async def save(api, text, status=201, **more):
    answer = await api.post("/v1/memories", json=NS | {"text": text} | more)
    assert answer.status_code == status, answer.text
    return answer.json()


async def search(api, query, **more):
    answer = await api.post("/v1/memories/search", json=NS | {"query": query} | more)
    assert answer.status_code == 200, answer.text
    return [one["text"] for one in answer.json()["data"]]


async def test_a_fact_is_kept_once_found_and_deleted(api, db):
    made = await save(api, "Invoices are in euros", user_id="ann", kind="preference")
    assert (made["user_id"], made["shared"], made["trust"]) == ("ann", False, "trusted")
    again = await save(api, "invoices are in Euros", status=200, user_id="ann")
    assert again["id"] == made["id"]
    await save(api, "Reports are in English", shared=True)
    assert await search(api, "the currency of a bill", user_id="ann", limit=1) == [made["text"]]
    assert await search(api, "invoices reports", user_id="bob") == ["Reports are in English"]
    listed = (await api.get("/v1/memories", params={"user_id": "ann"})).json()["data"]
    assert [m["id"] for m in listed] == [made["id"]]
    assert (await api.delete(f"/v1/memories/{made['id']}")).status_code == 204
    gone = await api.get(f"/v1/memories/{made['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "MEMORY_NOT_FOUND")
    assert await sql(db, "SELECT 1 FROM memories WHERE user_id = 'ann'") == []
    audit = (await api.get("/v1/audit")).text
    assert "memory.forget" in audit
    assert "euros" not in audit.lower()


async def test_forgetting_by_user_and_by_words(api, db):
    for user in ("ann", "bob"):
        await save(api, "The old address is Main Street 1", user_id=user)
        await save(api, "Tea is better than coffee", user_id=user)
    body = {"query": "old street", "user_id": "ann"}
    dry = (await api.post("/v1/memories/forget", json=body | {"dry_run": True})).json()
    assert (dry["count"], len(await sql(db, "SELECT 1 FROM memories"))) == (1, 4)
    assert (await api.post("/v1/memories/forget", json=body)).json()["count"] == 1
    assert (await api.post("/v1/memories/forget", json={"user_id": "bob"})).json()["count"] == 2
    assert await search(api, "tea street", user_id="ann") == ["Tea is better than coffee"]
    nothing = await api.post("/v1/memories/forget", json={"dry_run": False})
    assert (nothing.status_code, nothing.json()["field"]) == (422, "namespace")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"text": "The API key is sk-proj-abcdefghijklmnop1234"}, "FACT_IS_SECRET"),
        ({"text": "word " * 150}, "FACT_TOO_LONG"),
        ({"text": "x", "shared": True, "user_id": "ann"}, "INVALID"),
    ],
)
async def test_what_may_not_be_kept(api, db, body, code):
    answer = await api.post("/v1/memories", json=NS | body)
    assert answer.json()["code"] == code
    assert answer.json()["field"]
    assert await sql(db, "SELECT 1 FROM memories") == []


async def test_another_tenant_finds_nothing_and_deletes_nothing(api, other_api, db):
    made = await save(api, "The launch is in May", shared=True)
    assert await search(other_api, "launch May") == []
    assert (await other_api.get("/v1/memories")).json()["data"] == []
    assert (await other_api.delete(f"/v1/memories/{made['id']}")).status_code == 404
    assert (await other_api.post("/v1/memories/forget", json=NS)).json()["count"] == 0
    assert len(await sql(db, "SELECT 1 FROM memories")) == 1


async def test_a_viewer_reads_and_does_not_write(app, tenant):
    viewer = client_of(app, tenant, "viewer")
    with pytest.raises(ApiError, match="memories:write"):
        await viewer.memories.save("a", "x is y")
    operator = client_of(app, tenant, "operator")
    made = await operator.memories.save("a", "x is y", "ann", kind="decision", expires_days=3)
    assert made.kind == "decision"
    assert [m.id async for m in viewer.memories.list(user_id="ann")] == [made.id]
    assert (await viewer.memories.search("a", "y", "ann")).data[0].id == made.id
    assert (await operator.memories.forget_all(user_id="ann")).count == 1


async def test_there_is_an_end_to_how_much_is_remembered(api):
    for i in range(5):
        await save(api, f"number {i} is known")
    full = await api.post("/v1/memories", json=NS | {"text": "three is 3"})
    assert (full.status_code, full.json()["code"]) == (429, "MEMORY_FULL")
    assert full.json()["limit"] == 5
    await save(api, "Number 2 is known", status=200)
    await save(api, "three is 3", user_id="ann")
