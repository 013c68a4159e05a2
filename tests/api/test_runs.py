"""Runs over HTTP: start, repeat, list, wait, cancel, retry, and what is shown of their steps."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from harness_common.core.ids import decode, encode
from harness_common.core.inputs import StepFailed
from harness_common.core.step import Failure
from tests.store.play import WHEN, ran, say

RUN = {"agent": "a", "input": "hi"}


async def start(api, **more) -> Any:
    answer = await api.post("/v1/runs", json=RUN | more)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def actions(api, target: str) -> list[str]:
    rows = (await api.get("/v1/audit", params={"limit": 200})).json()["data"]
    return [row["action"] for row in rows if row["target"] == target]


async def test_a_run_is_accepted_rung_and_shown(api, redis, services, tenant):
    answer = await api.post(
        "/v1/runs",
        json=RUN
        | {"tags": {"k": "v"}, "priority": 2, "max_turns": 3, "title": "t", "timeout_s": 60},
        headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"},
    )
    run = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/runs/{run['id']}" == run["links"]["self"]
    assert run["agent"] == {"name": "a", "version": 1}
    assert (run["status"], run["phase"], run["turn_state"]) == ("running", "PLANNING", "sampling")
    assert (run["tags"], run["priority"], run["limits"]["max_turns"]) == ({"k": "v"}, 2, 3)
    assert run["trace_id"] == "ab" * 16
    assert run["created_by"] == encode("api_key", tenant.rows["admin"]["id"])
    assert run["scripted"] is True
    assert (await api.get(answer.headers["location"])).json() == run
    async with asyncio.timeout(5):
        while services.bell.rung + services.bell.lost == 0:  # noqa: ASYNC110 - a thread rings
            await asyncio.sleep(0.01)
    queues = [k async for k in redis.scan_iter("harness:steps.default*") if b"_kombu" not in k]
    assert len(queues) == 1, "no doorbell rang"
    assert await actions(api, run["id"]) == ["run.create"]


async def test_a_run_without_room_is_queued_and_the_scheduler_nudged(api, redis):
    await api.patch("/v1/tenant/limits", json={"max_running": 0})
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe("harness:scheduler:nudge")
        await pubsub.get_message(timeout=5)
        run = await start(api)
        heard = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
    assert heard is not None
    assert (run["status"], run["started_at"], run["phase"]) == ("queued", None, "IDLE")
    tenant = (await api.get("/v1/tenant")).json()
    assert (tenant["running"], tenant["queued"], tenant["limits"]["max_running"]) == (0, 1, 0)
    waiting = (await api.get(f"/v1/runs/{run['id']}")).json()["waiting"]
    assert (waiting["for"], waiting["place"]) == ("no_worker", 1)
    assert (await api.get("/v1/runs")).json()["data"][0]["waiting"] is None, "of single runs only"


# ── Idempotency-Key ──────────────────────────────────────────────────────────────────────────────


async def test_the_same_key_and_body_give_the_same_run(api):
    key = {"Idempotency-Key": "order 66"}
    first = await api.post("/v1/runs", json=RUN, headers=key)
    again = await api.post("/v1/runs", json=dict(reversed(RUN.items())), headers=key)
    assert again.status_code == 202
    assert again.json()["id"] == first.json()["id"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert len((await api.get("/v1/runs")).json()["data"]) == 1
    assert await actions(api, first.json()["id"]) == ["run.create"]


async def test_the_same_key_with_another_body_is_refused(api):
    key = {"Idempotency-Key": "k"}
    await api.post("/v1/runs", json=RUN, headers=key)
    answer = await api.post("/v1/runs", json=RUN | {"input": "other"}, headers=key)
    assert (answer.status_code, answer.json()["code"]) == (409, "IDEMPOTENCY_KEY_REUSED")


async def test_twins_at_once_make_one_run(api):
    key = {"Idempotency-Key": "k"}
    answers = await asyncio.gather(*(api.post("/v1/runs", json=RUN, headers=key) for _ in range(8)))
    assert {a.status_code for a in answers} == {202}
    assert len({a.json()["id"] for a in answers}) == 1
    assert sum("idempotency-replayed" in a.headers for a in answers) == 7


async def test_a_key_belongs_to_its_tenant(api, other_tenant):
    key = {"Idempotency-Key": "k"}
    first = await api.post("/v1/runs", json=RUN, headers=key)
    other = await api.post("/v1/runs", json=RUN, headers=key | other_tenant.headers("admin"))
    assert other.status_code == 202
    assert other.json()["id"] != first.json()["id"]


async def test_a_refused_run_does_not_use_up_its_key(api):
    key = {"Idempotency-Key": "k"}
    assert (await api.post("/v1/runs", json=RUN | {"agent": "b"}, headers=key)).status_code == 404
    assert (await api.post("/v1/runs", json=RUN, headers=key)).status_code == 202


@pytest.mark.parametrize("key", [b"", b"x" * 256, b"caf\xe9", b"tab\there"])
async def test_a_malformed_key_is_refused(api, key):
    answer = await api.post("/v1/runs", json=RUN, headers={"Idempotency-Key": key})
    assert (answer.status_code, answer.json()["field"]) == (422, "Idempotency-Key")


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


async def test_what_does_not_exist_is_not_found(api):
    nowhere = encode("session", UUID(int=1))
    for body in (RUN | {"agent": "b"}, RUN | {"agent_version": 9}, RUN | {"session_id": nowhere}):
        answer = await api.post("/v1/runs", json=body)
        assert answer.status_code == 404
        assert answer.json()["field"] in body
    answer = await api.get(f"/v1/runs/{encode('run', UUID(int=1))}")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


async def test_a_session_takes_one_run_at_a_time_and_none_once_closed(api, play):
    session = (await api.post("/v1/sessions", json={"title": "t", "metadata": {"a": [1]}})).json()
    assert (session["status"], session["metadata"]) == ("created", {"a": [1]})
    path = f"/v1/sessions/{session['id']}"
    run = await start(api, session_id=session["id"])
    assert (await api.get(path)).json()["status"] == "running"
    answer = await api.post("/v1/runs", json=RUN | {"session_id": session["id"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "SESSION_BUSY")
    answer = await api.post(f"{path}/close")
    assert (answer.status_code, answer.json()["code"]) == (409, "SESSION_BUSY")
    await play.step(decode("run", run["id"]), say())
    assert (await api.get(path)).json()["status"] == "idle"
    for _ in range(2):
        answer = await api.post(f"{path}/close")
        assert (answer.status_code, answer.json()["status"]) == (200, "closed")
    answer = await api.post("/v1/runs", json=RUN | {"session_id": session["id"]})
    assert answer.status_code == 409
    listed = (await api.get(f"{path}/runs")).json()["data"]
    assert [r["id"] for r in listed] == [run["id"]]
    assert await actions(api, session["id"]) == ["session.close", "session.create"]


# ── lists ────────────────────────────────────────────────────────────────────────────────────────


async def test_pages_hold_every_run_once_newest_first(api):
    made = [(await start(api))["id"] for _ in range(7)]
    seen, cursor = [], None
    while True:
        query = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = (await api.get("/v1/runs", params=query)).json()
        seen += [r["id"] for r in page["data"]]
        await start(api)  # what comes meanwhile does not disturb the pages
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(seen) == sorted(made)
    assert seen == sorted(seen, reverse=True)


async def test_a_list_is_filtered(api, play):
    one = await start(api, tags={"team": "red:hot", "n": "1"})
    two = await start(api, tags={"team": "blue"})
    await play.step(decode("run", two["id"]), say())

    async def ids(**query) -> list[str]:
        answer = await api.get("/v1/runs", params=query)
        assert answer.status_code == 200, answer.text
        return [r["id"] for r in answer.json()["data"]]

    assert await ids(tag="team:red:hot") == [one["id"]]
    assert await ids(tag=["team:red:hot", "n:2"]) == []
    assert await ids(status="succeeded") == [two["id"]]
    assert await ids(status=["succeeded", "running"]) == [two["id"], one["id"]]
    assert await ids(agent="nobody") == []
    assert await ids(session_id=one["session_id"]) == [one["id"]]
    assert await ids(created_before=one["created_at"]) == []
    assert await ids(created_after=two["created_at"]) == [two["id"]]
    await play.claim(decode("run", one["id"]))
    await api.post(f"/v1/runs/{one['id']}/cancel")
    assert await ids(status="cancelling") == [one["id"]]
    assert await ids(status="running") == []


# ── waiting, cancel, retry ───────────────────────────────────────────────────────────────────────


async def test_waiting_ends_with_the_run(api, play, services):
    run = await start(api)
    waiting = asyncio.create_task(api.get(f"/v1/runs/{run['id']}", params={"wait": 20}))
    while not services.hub._topics:  # noqa: ASYNC110 - the hub has no signal for it
        await asyncio.sleep(0.01)
    await play.step(decode("run", run["id"]), say("the answer"))
    async with asyncio.timeout(5):
        ended = (await waiting).json()
    assert (ended["status"], ended["output"]) == ("succeeded", "the answer")
    assert not services.hub._topics


async def test_waiting_ends_with_its_time(api):
    run = await start(api)
    answer = await api.get(f"/v1/runs/{run['id']}", params={"wait": 0.05})
    assert (answer.status_code, answer.json()["status"]) == (200, "running")
    assert (await api.get(f"/v1/runs/{run['id']}", params={"wait": 61})).status_code == 422


async def test_cancel_ends_a_run_that_nobody_works_on_and_is_safe_to_repeat(api):
    await api.patch("/v1/tenant/limits", json={"max_running": 0})
    run = await start(api)
    for _ in range(2):
        answer = await api.post(f"/v1/runs/{run['id']}/cancel", json={"reason": "enough"})
        assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")
    assert await actions(api, run["id"]) == ["run.cancel", "run.create"]


async def test_cancel_tells_the_worker_that_holds_the_run(api, play, redis):
    run = await start(api)
    run_id = decode("run", run["id"])
    await play.claim(run_id)
    async with redis.pubsub() as pubsub:
        await pubsub.subscribe(f"harness:worker:{play.worker.hex}")
        await pubsub.get_message(timeout=5)
        answer = await api.post(f"/v1/runs/{run['id']}/cancel")
        heard = await pubsub.get_message(ignore_subscribe_messages=True, timeout=5)
    assert answer.json()["status"] == "cancelling"
    assert answer.json()["worker"] == encode("worker", play.worker)
    assert heard is not None
    assert run_id.hex.encode() in heard["data"]


async def test_retry_makes_a_new_run_from_the_last_checkpoint(api, play):
    run = await start(api)
    run_id = decode("run", run["id"])
    refused = await api.post(f"/v1/runs/{run['id']}/retry")
    assert (refused.status_code, refused.json()["status"]) == (409, 409)
    await play.step(run_id, say(tools=["look"]))
    await play.step(run_id, ran("seen"))
    await play.step(run_id, StepFailed(Failure("permanent", "BAD", "no"), WHEN))
    failed = (await api.get(f"/v1/runs/{run['id']}")).json()
    assert (failed["status"], failed["error"]["code"]) == ("failed", "BAD")
    answer = await api.post(f"/v1/runs/{run['id']}/retry", json={})
    again = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/v1/runs/{again['id']}"
    assert again["forked_from"] == {"run_id": run["id"], "step": 2}
    assert (again["step"], again["turn"], again["status"]) == (2, 1, "running")
    assert again["session_id"] == run["session_id"]
    assert await actions(api, run["id"]) == ["run.retry", "run.create"]


# ── what happened ────────────────────────────────────────────────────────────────────────────────


async def test_steps_calls_checkpoints_messages_and_tree_tell_the_same_story(api, play):
    run = await start(api)
    run_id, path = decode("run", run["id"]), f"/v1/runs/{run['id']}"
    await play.step(run_id, say("let me look", tools=["look", "look"]))
    await play.step(run_id, ran("one", "two"))
    await play.step(run_id, say("done"))

    async def data(what: str, **query) -> Any:
        answer = await api.get(f"{path}/{what}", params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    steps = await data("steps")
    assert [(s["step"], s["kind"]) for s in steps] == [(1, "model"), (2, "tools"), (3, "model")]
    assert (steps[0]["model"], steps[0]["finish"]) == ("scripted/x", "tool_calls")
    assert steps[0]["tokens"] == {"input": 3, "output": 2}
    assert [(t["call"], t["tool"], t["status"]) for t in steps[1]["tools"]] == [
        ("2.0", "look", "succeeded"),
        ("2.1", "look", "succeeded"),
    ]
    assert {s["worker"] for s in steps} == {encode("worker", play.worker)}
    calls = await data("tool-calls")
    assert [(c["call"], c["result"], c["arguments"]) for c in calls] == [
        ("2.0", "one", {"i": 0}),
        ("2.1", "two", {"i": 1}),
    ]
    assert calls[0]["idempotency_key"] == f"{run['id']}.2.0"
    assert [c["step"] for c in await data("checkpoints")] == [1, 2, 3]
    messages = await data("messages")
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[0]["content"] == [{"type": "text", "text": "hi"}]
    tree = (await api.get(f"{path}/tree")).json()
    assert (tree["session"], tree["run"]) == (run["session_id"], run["id"])
    assert [(t["turn"], [s["step"] for s in t["steps"]]) for t in tree["turns"]] == [
        (1, [1, 2]),
        (2, [3]),
    ]
    assert len(tree["turns"][0]["steps"][1]["tool_calls"]) == 2
    assert tree["next_cursor"] is None
    pages = [(await api.get(f"{path}/tree", params={"limit": 1})).json()]
    while (cursor := pages[-1]["next_cursor"]) is not None:
        query = {"limit": 1, "cursor": cursor}
        pages.append((await api.get(f"{path}/tree", params=query)).json())
    assert [[(t["turn"], [s["step"] for s in t["steps"]]) for t in p["turns"]] for p in pages] == [
        [(1, [1])],
        [(1, [2])],
        [(2, [3])],
    ]
    assert pages[1]["turns"][0]["steps"] == tree["turns"][0]["steps"][1:]
    for what, count in (("steps", 3), ("tool-calls", 2), ("checkpoints", 3), ("messages", 4)):
        seen: list[dict] = []
        cursor = None
        while cursor is not None or not seen:
            query = {"limit": 1} | ({"cursor": cursor} if cursor else {})
            page = (await api.get(f"{path}/{what}", params=query)).json()
            seen += page["data"]
            cursor = page["next_cursor"]
        assert seen == await data(what), what
        assert len(seen) == count
