"""A session's messages as one conversation, and what changed between versions of an agent."""

from __future__ import annotations

from typing import Any

from harness_api.agent_diff import diff_specs
from harness_common.core.ids import decode
from tests.store.play import ran, say


async def test_the_messages_of_a_sessions_runs_come_newest_first_in_pages(api, play):
    first = (await api.post("/v1/runs", json={"agent": "a", "input": "one"})).json()
    session = first["session_id"]
    for result in (say("I look", tools=["look"]), ran("seen"), say("it is 1")):
        await play.step(decode("run", first["id"]), result)
    body = {"agent": "a", "input": "two", "session_id": session}
    second = (await api.post("/v1/runs", json=body)).json()
    await play.step(decode("run", second["id"]), say("it is 2"))
    path = f"/v1/sessions/{session}/messages"
    found = (await api.get(path)).json()["data"]
    assert [(m["run_id"], m["role"]) for m in found] == [
        (second["id"], "assistant"), (second["id"], "user"), (first["id"], "assistant"),
        (first["id"], "tool"), (first["id"], "assistant"), (first["id"], "user"),
    ]  # fmt: skip
    assert found[0]["content"] == [{"type": "text", "text": "it is 2"}]
    paged: list[Any] = []
    cursor = None
    while cursor is not None or not paged:
        page = await api.get(path, params={"limit": 4} | ({"cursor": cursor} if cursor else {}))
        paged += page.json()["data"]
        cursor = page.json()["next_cursor"]
    assert paged == found


async def test_a_retry_does_not_repeat_what_it_took_over(api, play):
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "one"})).json()
    await play.step(decode("run", run["id"]), say("I look", tools=["look"]))
    owned = await play.claim(decode("run", run["id"]))
    await api.post(f"/v1/runs/{run['id']}/cancel")
    await play.settle(owned, ran("seen"))
    retry = (await api.post(f"/v1/runs/{run['id']}/retry", json={})).json()
    assert retry["session_id"] == run["session_id"]
    await play.step(decode("run", retry["id"]), say("done"))
    found = (await api.get(f"/v1/sessions/{run['session_id']}/messages")).json()["data"]
    said = [(m["run_id"], m["content"][0].get("text")) for m in found if m["role"] == "assistant"]
    assert said == [(retry["id"], "done"), (run["id"], "I look")]
    assert [m["run_id"] for m in found if m["role"] == "user"] == [run["id"]]


async def test_what_changed_between_versions_is_named_field_by_field(api):
    text = "You are kind.\nYou answer in French.\nYou are brief."
    one = {"system": text, "retry": {"max_attempts": 3}, "tools": ["look"]}
    two = {"system": text.replace("French", "Latin"), "retry": {"max_attempts": 4}}
    for spec in (one, two):
        assert (await api.post("/v1/agents", json={"name": "x", "spec": spec})).is_success
    found = (await api.get("/v1/agents/x/diff")).json()
    assert (found["from_version"], found["to_version"]) == (1, 2)
    by_path = {c["path"]: c for c in found["changes"]}
    assert set(by_path) == {"system", "retry.max_attempts", "tools"}
    assert by_path["retry.max_attempts"] | {"lines": None} == {
        "path": "retry.max_attempts", "change": "changed", "before": 3, "after": 4, "lines": None,
    }  # fmt: skip
    assert "-You answer in French." in by_path["system"]["lines"]
    assert "+You answer in Latin." in by_path["system"]["lines"]
    back = (await api.get("/v1/agents/x/diff?from_version=2&to_version=1")).json()
    assert {c["path"] for c in back["changes"]} == set(by_path)
    same = (await api.get("/v1/agents/x/diff?to_version=1")).json()
    assert (same["from_version"], same["changes"]) == (1, [])
    missing = await api.get("/v1/agents/x/diff?from_version=9")
    assert (missing.status_code, missing.json()["code"]) == (404, "AGENT_NOT_FOUND")


def test_a_field_that_an_old_version_was_stored_without_is_no_change():
    assert diff_specs({"model": "scripted/demo"}, {"model": "scripted/demo", "skills": []}) == []
    (change,) = diff_specs({}, {"model_options": {"seed": 1}})
    assert (change.path, change.change, change.after) == ("model_options.seed", "added", 1)
