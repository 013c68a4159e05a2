"""Policies over HTTP: set, read, tried, and what they decided about a call."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from harness_common.contracts.tool import EffectClass
from harness_common.core.ids import decode
from harness_worker.steps import tools
from tests.store.play import say, sql
from tests.worker.runtime import claim_tools_step, make_runtime, make_tool

RULES = "rules:\n- {name: small, match: {tools: [pay]}, then: deny, reason: no money}\n"


async def put(api, source: str, **more: Any):
    return await api.post("/v1/policies", json={"source": source, **more})


async def test_set_and_read(api, tenant):
    nothing = (await api.get("/v1/policies")).json()
    assert (nothing["version"], nothing["rules"], nothing["agent"]) == (0, {}, None)
    first = await put(api, RULES)
    assert first.status_code == 201
    assert first.json()["created_by"].startswith("key_")
    again = await put(api, RULES)
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await put(api, "taint: deny", agent="a")).json()["version"] == 1
    assert (await put(api, RULES + "taint: hide")).json()["version"] == 2
    assert (await api.get("/v1/policies")).json()["rules"]["taint"] == "hide"
    assert (await api.get("/v1/policies?agent=a")).json()["rules"] == {"rules": [], "taint": "deny"}
    listed = (await api.get("/v1/policies/versions?limit=1")).json()
    assert [v["version"] for v in listed["data"]] == [2]
    rest = (await api.get(f"/v1/policies/versions?cursor={listed['next_cursor']}")).json()
    assert [v["version"] for v in rest["data"]] == [1]
    assert (await api.get("/v1/policies/versions/1")).json() == first.json()
    missing = await api.get("/v1/policies/versions/3")
    assert (missing.status_code, missing.json()["code"]) == (404, "POLICY_NOT_FOUND")


async def test_mistakes_are_named_by_pointer(api):
    answer = await put(api, "rules: [{name: a, then: maybe}, {name: b}]")
    body = answer.json()
    assert (answer.status_code, body["code"], body["field"]) == (
        422, "POLICY_INVALID", "/rules/0/then",
    )  # fmt: skip
    assert [e["field"] for e in body["errors"]] == ["/rules/0/then", "/rules/1/then"]
    assert (await api.get("/v1/policies")).json()["version"] == 0


LONG = "rules:\n" + "".join(
    f"- {{name: r{n}, match: {{arguments: {{enum: {list(range(150))}}}}}, then: deny}}\n"
    for n in range(350)
)


@pytest.mark.parametrize("path", ["/v1/policies", "/v1/policies/test"])
async def test_long_rules_hold_up_nobody_else(api, path):
    """INV11: they take seconds to read, and whoever may look may try some."""
    gaps, done = [0.0], asyncio.Event()

    async def others():
        while not done.is_set():
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - begun)

    ticking = asyncio.ensure_future(others())
    body = {"source": LONG} | ({"tool": {"name": "pay"}} if path.endswith("test") else {})
    begun = time.monotonic()
    answer = await api.post(path, json=body)
    took_s = time.monotonic() - begun
    done.set()
    await ticking
    assert answer.status_code in {200, 201}, answer.text[:300]
    assert took_s > 0.5, "it is to be long"
    assert max(gaps) < took_s / 2, "beside the loop, not on it"


@pytest.mark.parametrize("role", ["viewer", "operator", "approver"])
async def test_only_an_admin_sets_rules_and_everybody_may_look(api, tenant, role):
    headers = tenant.headers(role)
    answer = await api.post("/v1/policies", json={"source": RULES}, headers=headers)
    assert (answer.status_code, answer.json()["permission"]) == (403, "policies:write")
    assert (await api.get("/v1/policies", headers=headers)).status_code == 200
    tried = {"tool": {"name": "pay"}}
    answer = await api.post("/v1/policies/test", json=tried, headers=headers)
    assert answer.json()["verdict"] == "allow"


async def test_rules_are_tried_against_a_made_up_call(api, other_tenant):
    await put(api, RULES)
    call = {"tool": {"name": "pay", "effect": "write"}, "arguments": {"usd": 7}}

    async def ask(**more: Any) -> Any:
        answer = await api.post("/v1/policies/test", json=call | more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    found = await ask()
    assert (found["verdict"], found["rule"], found["reasons"]) == (
        "deny", "tenant.small", ["no money"],
    )  # fmt: skip
    assert [look["rule"] for look in found["looks"]] == ["role", "timeout", "budget", "small"]
    assert (await ask(source=""))["verdict"] == "allow"
    assert (await ask(source="", tainted=True))["rule"] == "builtin.taint"
    four = "rules: [{name: r, then: ask, approvers: admin, four_eyes: true, expires_s: 9}]"
    asked = await ask(agent="a", agent_source=four)
    assert (asked["rule"], asked["approvers"]) == ("agent.r", ["admin"])
    assert (asked["four_eyes"], asked["expires_s"]) == (True, 9)
    viewer = {"name": "pay", "permission_tags": ["bank"]}
    assert (await ask(tool=viewer, role="viewer"))["rule"] == "hard.role"
    cost = {"name": "pay", "cost_estimate_usd": 2}
    assert (await ask(tool=cost, budget_left_usd=1))["rule"] == "hard.budget"
    for bad in ({"agent_source": four}, {"source": "rules: 3"}, {"tool": {"name": "no name"}}):
        assert (await api.post("/v1/policies/test", json=call | bad)).status_code == 422
    theirs = await api.post("/v1/policies/test", json=call, headers=other_tenant.headers("admin"))
    assert theirs.json()["verdict"] == "allow"


async def decided_call(api, play, db) -> tuple[str, list[str]]:
    """Run a tools step of a real run; return its id and what its tools did."""
    done: list[str] = []

    async def fn(ctx, i):
        done.append(ctx.call_id)
        return "done"

    made = [make_tool(n, EffectClass.WRITE, fn) for n in ("pay", "look")]
    runtime = await make_runtime(db, tools=made)
    run = (await api.post("/v1/runs", json={"agent": "a", "input": "pay"})).json()
    run_id = decode("run", run["id"])
    await play.step(run_id, say(tools=["pay", "look", "nonsense"]))
    ctx = await claim_tools_step(runtime, play, run_id)
    await play.settle(ctx.run, await tools.run(ctx))
    return run["id"], done


async def test_a_decision_is_explained(api, play, db, tenant):
    await put(api, RULES)
    run_id, done = await decided_call(api, play, db)
    assert len(done) == 1
    path = f"/v1/runs/{run_id}/calls/2.0/policy"
    found = (await api.get(path)).json()
    assert (found["verdict"], found["rule"], found["same"]) == ("deny", "tenant.small", True)
    assert (found["tool"], found["arguments"], found["status"]) == ("pay", {"i": 0}, "rejected")
    assert found["error_type"] == "PERMISSION_DENIED"
    assert found["version"] == "tenant@1 agent@0 builtin@1"
    assert (found["facts"]["role"], found["facts"]["effect"]) == ("admin", "write")
    assert [(x["layer"], x["matched"]) for x in found["looks"]] == [
        *[("hard", False)] * 3, ("tenant", True),
    ]  # fmt: skip
    allowed = (await api.get(path.replace("2.0", "2.1"))).json()
    assert (allowed["verdict"], allowed["rule"]) == ("allow", "builtin.effect")
    (small,) = [x for x in allowed["looks"] if x["rule"] == "small"]
    assert small["why"] == "tool is look, not pay"

    await put(api, "rules: [{name: other, then: allow}]")
    assert (await api.get(path)).json() == found, "by the version that applied then"

    missing = await api.get(path.replace("2.0", "2.2"))
    assert (missing.status_code, missing.json()["code"]) == (404, "NOT_DECIDED")
    assert (await api.get(path, headers=tenant.headers("viewer"))).status_code == 200


async def test_a_call_whose_arguments_were_changed_since_is_told_so(api, play, db):
    run_id, _ = await decided_call(api, play, db)
    await sql(db, "UPDATE tool_calls SET arguments = '{\"i\": 99}' WHERE idx = 0")
    found = (await api.get(f"/v1/runs/{run_id}/calls/2.0/policy")).json()
    assert (found["same"], found["verdict"]) == (False, "allow")
