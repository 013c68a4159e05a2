"""Tools as data over HTTP: versions, refusals, imports, the hosts they may go to, who may what."""

from __future__ import annotations

from typing import Any

import pytest

from harness_common.contracts.tool import EffectClass, Tool, ToolSpec
from harness_worker.runtime import register
from harness_worker.tools.announce import announce
from harness_worker.tools.registry import ToolRegistry
from tests.store.play import make_worker

TOOL: dict[str, Any] = {
    "name": "look",
    "description": "Look something up.",
    "input_schema": {
        "type": "object",
        "properties": {"q": {"type": "string"}, "id": {"type": "string"}},
        "required": ["id"],
    },
    "http": {"url": "https://api.example.com/{id}", "query": {"q": "{q}"}},
}


def changed(**more):
    return TOOL | more


def http(**more):
    return changed(http=TOOL["http"] | more)


async def local(db, *names):
    """Let a live worker have tools."""
    worker = await make_worker(db)
    spec = {"type": "object", "properties": {}}
    tools = [Tool(ToolSpec(n, "Built in.", spec, EffectClass.READ), print) for n in names]
    await announce(db, worker, ToolRegistry(tools))
    return worker


async def test_versions_count_up_and_nothing_is_lost(api):
    made = await api.post("/v1/tools", json=TOOL)
    assert made.status_code == 201, made.text
    body = made.json()
    assert (body["version"], body["effect"], body["status"]) == ("1", "read", "enabled")
    assert body["definition"]["http"]["query"] == {"q": "{q}"}
    assert list(body["input_schema"]["properties"]) == ["q", "id"]  # order is kept
    again = await api.post("/v1/tools", json=TOOL)
    assert (again.status_code, again.json()["version"]) == (200, "1")
    assert (await api.post("/v1/tools", json=changed(risk="high"))).json()["version"] == "2"
    assert (await api.get("/v1/tools/look")).json()["risk"] == "high"
    assert (await api.delete("/v1/tools/look")).status_code == 204
    assert (await api.get("/v1/tools/look")).status_code == 404
    assert (await api.delete("/v1/tools/look")).status_code == 404
    assert (await api.get("/v1/tools")).json()["data"] == []
    assert (await api.get("/v1/tools/look/versions/1")).json()["status"] == "removed"
    # What was removed comes back under a new number: the ledger names the old ones.
    assert (await api.post("/v1/tools", json=TOOL)).json()["version"] == "3"
    listed = (await api.get("/v1/tools/look/versions?limit=2")).json()
    assert [v["version"] for v in listed["data"]] == ["3", "2"]
    more = (await api.get(f"/v1/tools/look/versions?cursor={listed['next_cursor']}")).json()
    assert [v["version"] for v in more["data"]] == ["1"]
    audit = (await api.get("/v1/audit")).json()["data"]
    assert [a["action"] for a in audit if a["action"].startswith("tool.")] == [
        "tool.put", "tool.remove", "tool.put", "tool.put",
    ]  # fmt: skip


async def test_disabling_is_seen_and_undone(api):
    await api.post("/v1/tools", json=TOOL)
    assert (await api.post("/v1/tools/look/disable")).json()["status"] == "disabled"
    assert (await api.get("/v1/tools")).json()["data"][0]["status"] == "disabled"
    assert (await api.post("/v1/tools/look/enable")).json()["status"] == "enabled"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (changed(input_schema={"type": "array"}), "/input_schema"),
        (changed(input_schema={"type": "object", "required": 3}), "/input_schema/required"),
        (
            changed(input_schema={"type": "object", "properties": {"q": {"type": "text"}}}),
            "/input_schema/properties/q/type",
        ),
        (
            changed(input_schema={"type": "object", "properties": {"q": {"pattern": "a(?=b)"}}}),
            "/input_schema/properties/q/pattern",
        ),
        (
            changed(input_schema={"type": "object", "$defs": {"a": {"$ref": "http://x/y"}}}),
            "/input_schema/$defs/a/$ref",
        ),
        (
            changed(input_schema={"type": "object", "patternProperties": {}}),
            "/input_schema/patternProperties",
        ),
        (http(url="https://{id}.example.com/"), "/http/url"),
        (http(url="https://user@example.com/"), "/http/url"),
        (http(url="ftp://example.com/{id}"), "/http/url"),
        (http(url="https://example.com/{q}"), "/http/url"),
        (http(query={"x": "{nothing}"}), "/http/query/x"),
        (http(query={"x": "{q"}), "/http/query/x"),
        (http(headers={"Host": "evil"}), "/http/headers/Host"),
        (http(headers={"A b": "x"}), "/http/headers/A b"),
        (http(headers={"Authorization": "Bearer abc"}), "/http/headers/Authorization"),
        (http(headers={"X": "a\r\nY: b"}), "/http/headers/X"),
        (http(body={"a": 1}), "/http/body"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
async def test_a_bad_definition_is_refused_with_its_place(api, body, pointer):
    answer = await api.post("/v1/tools", json=body)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert (problem["code"], problem["pointer"]) == ("TOOL_INVALID", pointer)
    assert (await api.get("/v1/tools")).json()["data"] == []


async def test_a_deep_schema_is_refused_and_not_an_error(api):
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(25):
        schema = {"type": "object", "properties": {"a": schema}}
    answer = await api.post("/v1/tools", json=changed(input_schema=schema))
    assert (answer.status_code, answer.json()["code"]) == (422, "TOOL_INVALID")


async def test_tools_of_live_workers_are_shown_and_their_names_are_taken(api, db):
    worker = await local(db, "calc", "look")
    shown = {t["name"]: t for t in (await api.get("/v1/tools")).json()["data"]}
    assert shown["calc"]["source"] == "worker"
    assert (shown["calc"]["effect"], shown["calc"]["timeout_s"]) == ("read", 30.0)
    assert shown["calc"]["queues"] == ["steps.default"]
    assert (await api.get("/v1/tools/calc")).json()["version"] == "1"
    answer = await api.post("/v1/tools", json=TOOL)
    assert (answer.status_code, answer.json()["code"]) == (409, "TOOL_NAME_TAKEN")
    async with db.connection() as conn:
        await conn.execute("DELETE FROM workers WHERE incarnation = %s", (worker,))
    assert (await api.get("/v1/tools")).json()["data"] == []


async def test_an_agent_with_a_tool_that_nobody_has_is_kept_and_warned_of(api, db):
    await local(db, "calc")
    await api.post("/v1/tools", json=TOOL)
    spec = {"tools": ["calc", "look", "nowhere"]}
    answer = await api.post("/v1/agents", json={"name": "b", "spec": spec})
    assert answer.status_code == 201
    (warning,) = answer.json()["warnings"]
    assert "'nowhere'" in warning
    await api.post("/v1/tools/look/disable")
    answer = await api.post("/v1/agents", json={"name": "b", "spec": spec})
    assert len(answer.json()["warnings"]) == 2


async def test_only_an_admin_changes_tools_and_hosts(api, tenant):
    """A tool can send a secret anywhere: who makes one must be trusted with all of them."""
    for role in ("viewer", "operator", "approver"):
        headers = tenant.headers(role)
        assert (await api.get("/v1/tools", headers=headers)).status_code == 200
        for method, path in (("POST", "/v1/tools"), ("PUT", "/v1/egress")):
            answer = await api.request(method, path, json={}, headers=headers)
            assert answer.status_code == 403, (role, path)


async def test_hosts_are_read_and_replaced(api):
    assert (await api.get("/v1/egress")).json()["allow"] == []
    rules = {"allow": ["API.Example.com.", "*.example.org"], "deny": ["10.0.0.1/8", "::1"]}
    answer = await api.put("/v1/egress", json=rules)
    assert answer.status_code == 200, answer.text
    assert answer.json()["allow"] == ["*.example.org", "api.example.com"]
    assert answer.json()["deny"] == ["10.0.0.0/8", "::1"]
    assert (await api.get("/v1/egress")).json()["deny"] == ["10.0.0.0/8", "::1"]


@pytest.mark.parametrize(
    "bad", ["https://x.com", "x.com/a", "x.com:80", "", "*", "*.*.x", "bücher.de", "1.2.3"]
)
async def test_a_bad_host_is_refused_by_its_place(api, bad):
    answer = await api.put("/v1/egress", json={"allow": ["ok.com", bad]})
    assert (answer.status_code, answer.json()["field"]) == (422, "allow[1]")


async def test_a_document_becomes_tools(api):
    document = {
        "openapi": "3.1.0",
        "servers": [{"url": "https://pets.example.com/v1"}],
        "paths": {
            "/pets/{id}": {
                "get": {
                    "operationId": "getPet",
                    "parameters": [
                        {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
                    ],
                },
            },
            "/upload": {
                "post": {
                    "requestBody": {
                        "required": True, "content": {"image/png": {"schema": {}}},
                    }
                }
            },
        },
    }  # fmt: skip
    dry = (await api.post("/v1/tools/import", json={"document": document, "dry_run": True})).json()
    assert [t["name"] for t in dry["tools"]] == ["getPet"]
    assert dry["skipped"] == [
        {"operation": "POST:/upload", "reason": "it takes a body of image/png"}
    ]
    assert (await api.get("/v1/tools")).json()["data"] == []
    done = (await api.post("/v1/tools/import", json={"document": document, "prefix": "p_"})).json()
    assert [(t["name"], t["version"], t["changed"]) for t in done["tools"]] == [
        ("p_getPet", "1", True)
    ]
    again = (await api.post("/v1/tools/import", json={"document": document, "prefix": "p_"})).json()
    assert [(t["version"], t["changed"]) for t in again["tools"]] == [("1", False)]
    answer = await api.post("/v1/tools/import", json={"document": document, "only": ["nothing"]})
    assert (answer.status_code, answer.json()["field"]) == (422, "only")


async def test_a_forgotten_worker_announces_its_tools_again(api, db):
    from tests.worker.runtime import make_runtime, make_tool

    runtime = await make_runtime(db, tools=[make_tool("calc", EffectClass.READ, print)])
    from harness_worker.heartbeat import beat

    async with db.connection() as conn:
        await conn.execute("DELETE FROM workers")
    await beat(runtime)
    assert [t["name"] for t in (await api.get("/v1/tools")).json()["data"]] == ["calc"]
    await register(db, runtime.settings, runtime.worker, "w")
