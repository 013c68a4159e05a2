"""Approvals over HTTP: what a person is shown, who may answer, what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from harness_common.core.approval import digest
from harness_common.core.ids import decode, encode
from harness_common.core.inputs import Admit
from harness_common.core.step import CallOutcome, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus
from tests.store.approval_play import asks, waiting
from tests.store.play import say, sql


@pytest.fixture
async def pending(api, play) -> Any:
    """Bring a run to three calls that need approval; return the approvals by call."""
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "pay"})).json()
    await waiting(
        play,
        asks(0, approver_roles=["approver", "admin"]),
        asks(1, four_eyes=True, approver_roles=["approver", "admin"], started_by=run["created_by"]),
        asks(2, approver_roles=["admin"]),
        run_id=decode("run", run["id"]),
    )
    found = (await api.get("/v1/approvals", params={"run_id": run["id"]})).json()["data"]
    return {a["call"].split(".")[1]: a for a in found}


async def approve(api, one: Any, status: int = 200, headers: Any = None, **more: Any) -> Any:
    body = {"expected_digest": one["digest"], **more}
    done = await api.post(f"/v1/approvals/{one['id']}/approve", json=body, headers=headers)
    assert done.status_code == status, done.text
    return done.json()


async def deny(api, one: Any, status: int = 200, headers: Any = None, **more: Any) -> Any:
    body = {"reason": "no", **more}
    done = await api.post(f"/v1/approvals/{one['id']}/deny", json=body, headers=headers)
    assert done.status_code == status, done.text
    return done.json()


async def test_what_waits_is_shown_with_what_is_needed_to_decide(api, pending, tenant):
    one = (await api.get(f"/v1/approvals/{pending['0']['id']}")).json()
    assert one == pending["0"]
    assert one["arguments"] == {"i": 0}
    assert one["digest"] == digest("pay", {"i": 0})
    assert (one["tool"], one["risk"], one["status"]) == ("pay", "high", "pending")
    assert one["approver_roles"] == ["approver", "admin"]
    run = (await api.get(f"/v1/runs/{one['run_id']}")).json()
    assert run["status"] == "waiting_approval"
    calls = run["waiting"]["calls"]
    assert [(c["call"], c["kind"], c["tool"]) for c in calls] == [
        ("2.0", "approval", "pay"), ("2.1", "approval", "pay"), ("2.2", "approval", "pay"),
    ]  # fmt: skip
    assert calls[0]["approval"] == one["id"]
    for role in ("viewer", "operator", "approver"):
        seen = await api.get("/v1/approvals", headers=tenant.headers(role))
        assert len(seen.json()["data"]) == 3


async def test_the_list_is_filtered_and_paged(api, pending):
    await deny(api, pending["0"])
    params = {"status": "pending", "limit": 1}
    first = (await api.get("/v1/approvals", params=params)).json()
    second = (
        await api.get("/v1/approvals", params=params | {"cursor": first["next_cursor"]})
    ).json()
    ids = [a["id"] for a in (*first["data"], *second["data"])]
    assert set(ids) == {pending["1"]["id"], pending["2"]["id"]}
    assert second["next_cursor"] is None
    denied = (await api.get("/v1/approvals", params={"status": "denied"})).json()["data"]
    assert [a["id"] for a in denied] == [pending["0"]["id"]]
    bad = await api.get("/v1/approvals", params={"status": "maybe"})
    assert (bad.status_code, bad.json()["field"]) == (422, "status")


async def test_who_may_decide(api, pending, tenant):
    for role in ("viewer", "operator"):
        problem = await approve(api, pending["0"], 403, tenant.headers(role))
        assert problem["permission"] == "approvals:write"
    problem = await approve(api, pending["2"], 403, tenant.headers("approver"))
    assert (problem["code"], problem["limit"]) == ("APPROVER_ROLE", ["admin"])
    problem = await approve(api, pending["1"], 403)  # the admin key has started the run
    assert problem["code"] == "FOUR_EYES"
    assert problem["started_by"] == encode("api_key", tenant.rows["admin"]["id"])
    done = await approve(api, pending["1"], headers=tenant.headers("approver"))
    assert done["decided_by"] == encode("api_key", tenant.rows["approver"]["id"])
    narrow = await tenant.add_key("reads", "approver", ["approvals:read"])
    await approve(api, pending["0"], 403, {"Authorization": f"Bearer {narrow}"})


async def test_a_decision_is_safe_to_repeat_and_binds_to_what_was_shown(api, pending, tenant):
    wrong = await approve(api, pending["0"] | {"digest": "0" * 64}, 409)
    assert (wrong["code"], wrong["digest"]) == ("DIGEST_MISMATCH", pending["0"]["digest"])
    first = await approve(api, pending["0"], reason="fine")
    assert (first["status"], first["reason"]) == ("approved", "fine")
    again = await approve(api, pending["0"], headers=tenant.headers("approver"))
    assert again["decided_by"] == first["decided_by"]
    other = await deny(api, pending["0"], 409)
    assert (other["code"], other["decided_by"]) == ("APPROVAL_DECIDED", first["decided_by"])
    audit = (await api.get("/v1/audit")).json()["data"]
    assert [a["action"] for a in audit].count("approval.approve") == 1


async def test_arguments_are_changed_within_the_schema(api, pending, db):
    schema = '{"type": "object", "properties": {"i": {"type": "integer", "maximum": 9}}}'
    await sql(db, f"UPDATE approvals SET input_schema = '{schema.replace(':', chr(92) + ':')}'")
    bad = await approve(api, pending["0"], 422, arguments={"i": 10})
    assert (bad["code"], bad["field"]) == ("ARGUMENTS_INVALID", "arguments.i")
    done = await approve(api, pending["0"], arguments={"i": 5})
    assert done["digest"] == digest("pay", {"i": 5})
    assert (done["original_arguments"], done["arguments"]) == ({"i": 0}, {"i": 5})
    assert done["edited_by"] == done["decided_by"]


async def test_a_denial_says_why(api, pending):
    for reason in ("", "  ", "x" * 1001):
        problem = await deny(api, pending["0"], 422, reason=reason)
        assert problem["field"] == "reason"
    done = await deny(api, pending["0"], reason="not this one")
    assert (done["status"], done["reason"]) == ("denied", "not this one")
    events = (await api.get(f"/v1/runs/{done['run_id']}/events")).json()["data"]
    decided = next(e for e in events if e["type"] == "approval.decided")
    assert decided["payload"]["verdict"] == "denied"
    assert decided["payload"]["approval"] == done["id"]
    requested = [e for e in events if e["type"] == "approval.requested"]
    assert [e["payload"]["call"] for e in requested] == ["2.0", "2.1", "2.2"]


async def test_the_run_goes_on_after_the_last_decision(api, pending, tenant, play):
    run_id = pending["0"]["run_id"]
    await approve(api, pending["2"])
    await deny(api, pending["1"])
    assert (await api.get(f"/v1/runs/{run_id}")).json()["status"] == "waiting_approval"
    await approve(api, pending["0"])
    assert (await api.get(f"/v1/runs/{run_id}")).json()["status"] == "queued"
    await play.apply(await play.read(decode("run", run_id)), Admit())
    calls = (await api.get(f"/v1/runs/{run_id}/tool-calls")).json()
    assert [c["status"] for c in calls["data"]] == [
        "awaiting_approval", "rejected", "awaiting_approval",
    ]  # fmt: skip


async def test_a_question_beside_an_approval_can_be_answered_first(api, play):
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "pay"})).json()
    run_id = decode("run", run["id"])
    await play.step(run_id, say(tools=["pay", "ask_user"]))
    asked = Wait(1, "input", None, {"question": "which?", "choices": []})
    question = CallOutcome(1, "c", "ask_user", CallStatus.RUNNING, "input", wait=asked)
    yes = asks(0, approver_roles=["admin"])
    await play.step(run_id, ToolsWaiting((yes, question)))
    (one,) = (await api.get("/v1/approvals")).json()["data"]
    answered = await api.post(f"/v1/runs/{run['id']}/input", json={"text": "that"})
    assert (answered.status_code, answered.json()["status"]) == (202, "waiting_approval")
    await approve(api, one)
    assert (await api.get(f"/v1/runs/{run['id']}")).json()["status"] == "queued"


async def test_an_unknown_approval_is_not_found(api):
    nobody = "appr_" + "0" * 32
    for answer in (
        await api.get(f"/v1/approvals/{nobody}"),
        await api.post(f"/v1/approvals/{nobody}/approve", json={"expected_digest": "0" * 64}),
    ):
        assert (answer.status_code, answer.json()["field"]) == (404, "approval_id")
