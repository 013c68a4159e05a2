"""Two tenants never see each other's anything: every route is asked with the other tenant's ids."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from fastapi.routing import APIRoute

from harness_api.app import create_app
from harness_api.responses.ids import Ref
from harness_common.blobs.local import LocalBlobs
from harness_common.core.ids import decode, encode
from harness_common.core.policy import Facts, decide
from harness_common.core.step import ToolsDone
from harness_common.settings import Settings
from harness_common.store.artifacts import save_artifact
from tests.store.approval_play import asks, waiting
from tests.store.play import ran, say

BY_ID = sorted(
    (method, route.path)
    for route in create_app(Settings()).routes
    if isinstance(route, APIRoute) and route.path.startswith("/v1") and "{" in route.path
    for method in route.methods or ()
    # Whoever sets one of that name makes one of their own: see test_secrets, test_mcp_servers.
    if (method, route.path)
    not in {
        ("PUT", "/v1/secrets/{name}"),
        ("PUT", "/v1/mcp-servers/{server}"),
        (
            "GET",
            "/v1/runs/{run_id}/steps/{step}/context",
        ),  # of a real model: tests/api/test_context.py
        # For operators, and of processes, which are nobody's: tests/api/test_operators.py
        ("PATCH", "/v1/platform/tenants/{tenant_id}/limits"),
        ("GET", "/v1/workers/{worker_id}/runs"),
    }
)
LISTS = [
    "approvals",
    "runs",
    "agents",
    "tools",
    "webhooks",
    "sessions",
    "schedules",
    "skills",
    "memories",
    "api-keys",
    "audit",
]


@pytest.fixture
async def owned(api, play, db, config, tenant):
    """Make one of everything for the first tenant; return the ids by their name in paths."""
    await api.post("/v1/agents", json={"name": "mine", "spec": {}})
    tool = {"name": "mine", "description": "only mine", "http": {"url": "http://secret.test/"}}
    await api.post("/v1/tools", json=tool)
    hook = {"url": "https://secret.test/", "types": ["run.failed"]}
    hook = (await api.post("/v1/webhooks", json=hook)).json()
    run = (await api.post("/v1/runs", json={"agent": "mine", "input": "only mine"})).json()
    await api.post(
        "/v1/policies", json={"source": "rules: [{name: mine, then: deny, reason: only mine}]"}
    )
    decision = decide(Facts("look")).to_json()
    seen = ToolsDone(tuple(replace(o, policy=decision) for o in ran("seen").outcomes))
    for result in (say(tools=["look"]), seen, say()):
        await play.step(decode("run", run["id"]), result)
    other = (await api.post("/v1/runs", json={"agent": "mine", "input": "only mine"})).json()
    await waiting(play, asks(0), run_id=decode("run", other["id"]))
    (approval,) = (await api.get("/v1/approvals")).json()["data"]
    skill = {"description": "only mine", "prompt": "only mine"}
    await api.post("/v1/skills", json={"name": "mine", "spec": skill})
    fact = {"namespace": "mine", "text": "only mine"}
    fact = (await api.post("/v1/memories", json=fact)).json()
    await api.put("/v1/mcp-servers/mine", json={"url": "https://only-mine.test/"})
    schedule = {"name": "mine", "when": {"every_s": 3600}}
    schedule["run"] = {"agent": "mine", "input": "only mine"}
    await api.post("/v1/schedules", json=schedule)
    blobs = LocalBlobs(config.data_dir.resolve() / "blobs")
    artifact = await save_artifact(
        db,
        blobs,
        tenant.id,
        decode("run", run["id"]),
        name='a"b\r\nc.html',
        media_type="text/html",
        data=b"<script>",
    )
    return {
        "run_id": run["id"],
        "session_id": run["session_id"],
        "artifact_id": artifact,
        "key_id": encode("api_key", tenant.rows["viewer"]["id"]),
        "name": "mine",
        "version": "1",
        "call": "2.0",
        "step": "2",
        "response_id": str(Ref(decode("run", run["id"]))),
        "schedule": "mine",
        "server": "mine",
        "tool": "mine",
        "memory_id": fact["id"],
        "approval_id": approval["id"],
        "webhook_id": hook["id"],
        "erasure_id": (await api.post("/v1/erasures", json={"user_id": "only mine"})).json()["id"],
        "delivery_id": (await api.post(f"/v1/webhooks/{hook['id']}/test")).json()["id"],
    }


BODIES = {
    "/v1/approvals/{approval_id}/approve": {"expected_digest": "0" * 64},
    "/v1/approvals/{approval_id}/deny": {"reason": "x"},
    "/v1/runs/{run_id}/input": {"text": "x"},
    "/v1/runs/{run_id}/interrupt": {"interrupt_type": "pause", "target_step_id": "{run_id}.3"},
    "/v1/runs/{run_id}/messages": {"text": "x"},
    "/v1/runs/{run_id}/calls/{call}/resolve": {"outcome": "failed", "reason": "x"},
}
"""Bodies of routes that want one."""


def fill(path: str, ids: dict[str, str]) -> str:
    return re.sub(r"{(\w+)}", lambda m: ids[m[1]], path)


def body_of(path: str, ids: dict[str, str]) -> Any:
    body = BODIES.get(path)
    return body and {k: fill(v, ids) for k, v in body.items()}


@pytest.mark.parametrize(("method", "path"), BY_ID)
async def test_by_id_the_other_tenant_finds_nothing(api, owned, other_tenant, method, path):
    theirs = await api.request(
        method, fill(path, owned), headers=other_tenant.headers("admin"), json=body_of(path, owned)
    )
    assert theirs.status_code == 404, theirs.text
    assert "only mine" not in theirs.text
    if method == "GET":
        own = await api.get(fill(path, owned))
        assert own.status_code == (422 if path.endswith("/graph") else 200)  # it is no graph


@pytest.mark.parametrize("what", LISTS)
async def test_lists_hold_nothing_of_the_other_tenant(api, owned, other_tenant, what):
    mine = (await api.get(f"/v1/{what}")).json()["data"]
    theirs = await api.get(f"/v1/{what}", headers=other_tenant.headers("admin"))
    assert mine
    by = "name" if what == "tools" else "id"
    assert {r[by] for r in mine}.isdisjoint(r[by] for r in theirs.json()["data"])
    assert "mine" not in theirs.text


async def test_a_filter_does_not_reach_across(api, owned, other_tenant):
    answer = await api.get(
        "/v1/runs",
        params={"session_id": owned["session_id"]},
        headers=other_tenant.headers("admin"),
    )
    assert answer.json()["data"] == []


async def test_a_run_cannot_join_the_session_of_another_tenant(api, owned, other_tenant):
    answer = await api.post(
        "/v1/runs",
        json={"agent": "a", "input": "x", "session_id": owned["session_id"]},
        headers=other_tenant.headers("admin"),
    )
    assert answer.status_code == 404


async def test_nothing_of_the_owner_was_changed(api, owned, other_tenant):
    for method, path in BY_ID:
        if method != "GET":
            await api.request(
                method,
                fill(path, owned),
                headers=other_tenant.headers("admin"),
                json=body_of(path, owned),
            )
    assert (await api.get(f"/v1/sessions/{owned['session_id']}")).json()["status"] == "idle"
    assert (await api.get("/v1/schedules/mine")).json()["status"] == "active"
    assert (await api.get("/v1/schedules/mine/firings")).json()["data"] == []
    key = next(
        k for k in (await api.get("/v1/api-keys")).json()["data"] if k["id"] == owned["key_id"]
    )
    assert (key["revoked_at"], key["expires_at"]) == (None, None)


async def test_an_artifact_is_never_run_by_a_browser(api, owned):
    answer = await api.get(f"/v1/artifacts/{owned['artifact_id']}/content")
    assert answer.content == b"<script>"
    assert answer.headers["content-type"] == "text/html"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''a%22b%0D%0Ac.html"
    listed = (await api.get(f"/v1/runs/{owned['run_id']}/artifacts")).json()["data"]
    shown = (await api.get(f"/v1/artifacts/{owned['artifact_id']}")).json()
    assert listed == [shown]
    assert shown["size_bytes"] == 8
