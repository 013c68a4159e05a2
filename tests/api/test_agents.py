"""Agents over HTTP: versions, unchanged definitions, twins."""

from __future__ import annotations

import asyncio


async def put(api, **spec):
    return await api.post("/v1/agents", json={"name": "b", "spec": spec})


async def test_a_changed_definition_is_a_new_version_and_an_equal_one_is_not(api):
    first = await put(api, model="scripted/demo", tools=["look"], retry={"max_attempts": 3})
    assert (first.status_code, first.json()["version"]) == (201, 1)
    assert first.headers["location"] == "/v1/agents/b/versions/1"
    assert first.json()["spec"]["retry"]["max_attempts"] == 3
    same = await put(api, tools=["look"], retry={"max_attempts": 3})
    assert (same.status_code, same.json()) == (200, first.json())
    second = await put(api, system="be brief")
    assert (second.status_code, second.json()["version"]) == (201, 2)
    back = await put(api, tools=["look"], retry={"max_attempts": 3})
    assert (back.status_code, back.json()["version"]) == (201, 3)
    assert back.json().pop("warnings")
    assert (await api.get("/v1/agents/b")).json().items() <= back.json().items()
    put_second = second.json()
    assert put_second.pop("warnings") == []
    assert (await api.get("/v1/agents/b/versions/2")).json() == put_second
    listed = (await api.get("/v1/agents")).json()["data"]
    assert [(a["name"], a["version"]) for a in listed] == [("b", 3), ("a", 1)]
    pages = (await api.get("/v1/agents/b/versions", params={"limit": 2})).json()
    rest = await api.get("/v1/agents/b/versions", params={"cursor": pages["next_cursor"]})
    assert [a["version"] for a in pages["data"] + rest.json()["data"]] == [3, 2, 1]
    rows = (await api.get("/v1/audit")).json()["data"]
    assert [r["target"] for r in rows if r["action"] == "agent.put"][:3] == ["b@3", "b@2", "b@1"]


async def test_writers_at_once_make_one_version_each_and_lose_none(api):
    answers = await asyncio.gather(*(put(api, system=str(n)) for n in range(6)))
    made = [a.json()["version"] for a in answers if a.status_code == 201]
    assert sorted(made) == list(range(1, len(made) + 1))
    assert all(a.status_code in {201, 409} for a in answers)


async def test_a_run_pins_the_version_it_was_started_with(api):
    await put(api, system="1")
    run = (await api.post("/v1/runs", json={"agent": "b", "input": "x"})).json()
    await put(api, system="2")
    assert (await api.get(f"/v1/runs/{run['id']}")).json()["agent"]["version"] == 1
    pinned = {"agent": "b", "input": "x", "agent_version": 1}
    assert (await api.post("/v1/runs", json=pinned)).json()["agent"]["version"] == 1


async def test_an_output_schema_that_is_none_is_refused_with_its_pointer(api):
    for schema, pointer, words in (
        ({"type": "array"}, "/output_schema", '"type": "object"'),
        ({"type": "object", "properties": {"a": {"type": "sting"}}},
         "/output_schema/properties/a/type", "sting"),
        ({"type": "object", "properties": {"a": {"pattern": "(?=x)"}}},
         "/output_schema/properties/a/pattern", "RE2"),
        ({"type": "object", "$ref": "https://example.org/x"}, "/output_schema/$ref", "inside"),
    ):  # fmt: skip
        answer = await put(api, output_schema=schema)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "OUTPUT_SCHEMA_INVALID")
        assert problem["field"] == "output_schema"
        assert words in problem["detail"]
        asked = {"agent": "a", "input": "x", "output_schema": schema}
        refused = await api.post("/v1/runs", json=asked)
        assert (refused.status_code, refused.json()["code"]) == (422, "OUTPUT_SCHEMA_INVALID")
        assert pointer in str(problem)
    for depth in (60, 300, 2000):  # refused, and never a 500
        deep = '{"type":"object","properties":{"a":' * depth + "{}" + "}}" * depth
        for path, body in (
            ("/v1/agents", f'{{"name":"b","spec":{{"output_schema":{deep}}}}}'),
            ("/v1/runs", f'{{"agent":"a","input":"x","output_schema":{deep}}}'),
        ):
            headers = {"content-type": "application/json"}
            answer = await api.post(path, content=body, headers=headers)
            assert answer.status_code in {400, 413, 422}, (path, depth, answer.text[:200])
    assert (await put(api, contract={"reasks": 99})).status_code == 422
    assert (await put(api, contract={"hedges": ["perhaps"], "reasks": 1.0})).status_code == 201


async def test_an_unknown_agent_is_not_found(api):
    for path in ("/v1/agents/c", "/v1/agents/c/versions", "/v1/agents/a/versions/9"):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "AGENT_NOT_FOUND")
