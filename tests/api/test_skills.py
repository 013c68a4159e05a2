"""Skills over HTTP: versions, what they may name, and what a run pins."""

from __future__ import annotations

import json

import pytest

from harness_common.store.connection import run_sql
from tests.store.play import make_worker, sql

NOTHING = "art_" + "0" * 32
SPEC = {"description": "Audits a ledger.", "prompt": "Add up every account twice."}


async def apply(api, name="audit", status=201, **more):
    answer = await api.post("/v1/skills", json={"name": name, "spec": SPEC | more})
    assert answer.status_code == status, answer.text
    return answer.json()


async def announce(db, *names):
    """Let a live worker have these tools."""
    worker = await make_worker(db)
    params = {"worker": worker, "digests": list(names), "names": list(names)}
    async with db.connection() as conn:
        specs = [json.dumps({"name": name}) for name in names]
        await run_sql(conn, "tools_announce", params | {"specs": specs}, 5)


async def test_versions(api):
    assert (await apply(api))["version"] == 1
    assert (await apply(api, status=200))["version"] == 1
    assert (await apply(api, flow=["Read.", "Add."]))["version"] == 2
    assert (await api.get("/v1/skills/audit")).json()["spec"]["flow"] == ["Read.", "Add."]
    assert (await api.get("/v1/skills/audit/versions/1")).json()["spec"]["flow"] == []
    versions = (await api.get("/v1/skills/audit/versions")).json()["data"]
    assert [v["version"] for v in versions] == [2, 1]
    assert [s["name"] for s in (await api.get("/v1/skills")).json()["data"]] == ["audit"]
    gone = await api.get("/v1/skills/nothing")
    assert (gone.status_code, gone.json()["code"]) == (404, "SKILL_NOT_FOUND")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"tools": ["calculate", "no_such"]}, "spec.tools.1"),
        ({"graph": "nobody"}, "spec.graph"),
        ({"knowledge": [{"title": "t", "artifact": NOTHING}]}, "spec.knowledge.0.artifact"),
    ],
)  # fmt: skip
async def test_what_it_names_has_to_be_there(api, db, more, field):
    await announce(db, "calculate")
    answer = await api.post("/v1/skills", json={"name": "audit", "spec": SPEC | more})
    assert (answer.status_code, answer.json()["code"]) == (422, "SKILL_INVALID")
    assert answer.json()["field"] == field
    assert await sql(db, "SELECT 1 FROM skills") == []


async def test_without_a_worker_tools_are_not_checked(api):
    assert "no worker is alive" in (await apply(api, tools=["calculate"]))["warnings"][0]


async def test_a_skill_needs_something_to_say(api):
    answer = await api.post("/v1/skills", json={"name": "x", "spec": {"description": "Empty."}})
    assert answer.status_code == 422
    assert "needs a prompt" in answer.text


async def pins(db, run_id):
    (row,) = await sql(db, "SELECT overrides FROM runs WHERE id = cast(:r AS uuid)", r=run_id[4:])
    return [(p["name"], p["version"], p["active"]) for p in row["overrides"]["skills"]]


async def test_a_run_pins_what_its_agent_names_and_it_asks_for(api, db):
    for prompt in ("One.", "Two.", "Three."):
        await apply(api, prompt=prompt)
    await apply(api, "tone")
    spec = {"skills": ["audit@2", "tone"]}
    made = await api.post("/v1/agents", json={"name": "b", "spec": spec})
    assert made.json()["warnings"] == []
    run = (await api.post("/v1/runs", json={"agent": "b", "input": "x"})).json()["id"]
    assert await pins(db, run) == [("audit", 2, False), ("tone", 1, False)]
    asked = {"agent": "b", "input": "x", "skills": ["audit"]}
    run = (await api.post("/v1/runs", json=asked)).json()["id"]
    assert await pins(db, run) == [("audit", 3, True), ("tone", 1, False)]
    # An edit changes no run, nor a fork of one.
    await apply(api, prompt="Four.")
    forked = await api.post(f"/v1/runs/{run}/fork", json={})
    assert await pins(db, forked.json()["id"]) == [("audit", 3, True), ("tone", 1, False)]


async def test_a_run_with_an_unknown_skill_is_refused(api):
    made = await api.post("/v1/agents", json={"name": "b", "spec": {"skills": ["ghost@4"]}})
    assert "ghost@4" in made.json()["warnings"][0]
    for body in ({"agent": "b"}, {"agent": "a", "skills": ["ghost"]}):
        answer = await api.post("/v1/runs", json=body | {"input": "x"})
        assert (answer.status_code, answer.json()["code"]) == (404, "SKILL_NOT_FOUND")
        assert answer.json()["field"] == "skills"
