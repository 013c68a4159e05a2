"""What people do on the pages beside runs: each does what it says, and only for who may."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from harness_common.core.ids import decode, encode
from tests.console.conftest import LogIn, only, send
from tests.console.world import World
from tests.store.play import say, sql


async def asked(world: World) -> Any:
    return await world.call("GET", f"/approvals/{world.approval['id']}")


async def approver(login_as: LogIn) -> httpx.AsyncClient:
    return await login_as("approver")


@only("asked")
async def test_a_call_is_approved_as_it_was_shown(login_as: LogIn, world: World):
    path = f"/console/approvals/{world.approval['id']}"
    client = await approver(login_as)
    page = (await client.get(path)).text
    (digest, *_) = re.findall(r'name="digest" value="([0-9a-f]{64})"', page)
    stale = await send(client, f"{path}/approve", digest="0" * 64)
    assert stale.status_code == 409
    done = await send(client, f"{path}/approve", digest=digest, reason="fine")
    assert (done.status_code, done.headers["location"]) == (303, "/console/approvals")
    one = await asked(world)
    assert (one["status"], one["reason"]) == ("approved", "fine")
    assert one["decided_by"] == encode("api_key", world.tenant.rows["approver"]["id"])
    page = (await client.get("/console/approvals")).text
    assert "Approved: pay" in page
    assert world.approval["id"] not in page
    assert "approved" in (await client.get(path)).text


@only("asked")
async def test_a_call_is_denied_with_a_reason(login_as: LogIn, world: World):
    path = f"/console/approvals/{world.approval['id']}"
    client = await approver(login_as)
    blank = await send(client, f"{path}/deny", reason=" ")
    assert blank.status_code == 422
    assert (await asked(world))["status"] == "pending"
    assert (await send(client, f"{path}/deny", reason="not today")).status_code == 303
    one = await asked(world)
    assert (one["status"], one["reason"]) == ("denied", "not today")


@only("asked")
async def test_a_call_is_approved_with_other_arguments(login_as: LogIn, world: World):
    path = f"/console/approvals/{world.approval['id']}"
    client = await approver(login_as)
    given = {"digest": world.approval["digest"], "reason": "less"}
    for wrong in ("{", '{"i": NaN}', '{"i": 1e999}', '{"note": "\\ud800"}', "[" * 5_000):
        bad = await send(client, f"{path}/approve", **given, arguments=wrong)
        assert bad.status_code == 422, wrong[:20]
    done = await send(client, f"{path}/approve", **given, arguments='{"i": 0, "note": "x"}')
    assert done.status_code == 303, done.text
    one = await asked(world)
    assert one["arguments"] == {"i": 0, "note": "x"}
    assert one["original_arguments"] == world.approval["arguments"]
    page = (await client.get(path)).text
    assert "Changed by a person" in page
    assert re.search(r'class="add">\+\s+&#34;note&#34;: &#34;x&#34;', page)


@only("asked")
async def test_who_may_not_decide_is_told_why(login_as: LogIn, world: World):
    path = f"/console/approvals/{world.approval['id']}"
    viewer = await (await login_as("viewer")).get(path)
    assert "may look and not decide" in viewer.text
    assert "Approve as shown" not in viewer.text
    await sql(world.play.db, "UPDATE approvals SET four_eyes = true")
    assert "Four eyes: your key started" in (await (await login_as("admin")).get(path)).text
    await sql(
        world.play.db,
        "UPDATE approvals SET approver_roles = ARRAY['approver'] WHERE status = 'pending'",
    )
    admin = await (await login_as("admin")).get(path)
    assert "one of these roles: approver" in admin.text


@pytest.mark.parametrize(
    ("outcome", "status"),
    [("succeeded", "succeeded"), ("failed", "failed"), ("run_again", "proposed")],
)
@only("unknown")
async def test_an_unknown_effect_is_resolved(
    login_as: LogIn, world: World, outcome: str, status: str
):
    one = world.effect
    path = f"/console/effects/{one['run_id']}/{one['call']}"
    client = await approver(login_as)
    for given in ({}, {"outcome": outcome}, {"outcome": "maybe", "reason": "x"}):
        assert (await send(client, f"{path}/resolve", **given)).status_code == 422
    given = {"outcome": outcome, "reason": "I looked"}
    if outcome != "run_again":
        given["result"] = "paid 9.90"
    done = await send(client, f"{path}/resolve", **given)
    assert (done.status_code, done.headers["location"]) == (303, "/console/effects")
    call = await world.call("GET", f"/runs/{one['run_id']}/calls/{one['call']}")
    assert (call["status"], call["resolution"]["outcome"]) == (status, outcome)
    assert call["result"] == given.get("result")
    assert "No outcome is unknown" in (await client.get("/console/effects")).text
    assert "I looked" in (await client.get(path)).text
    again = await send(client, f"{path}/resolve", outcome="failed", reason="x")
    assert again.status_code == 409


@only("work")
async def test_a_message_begins_a_run_once_in_the_session(visitor: httpx.AsyncClient, world: World):
    path = f"/console/sessions/{world.session}"
    page = (await visitor.get(path)).text
    (once,) = re.findall(r'name="once" value="([0-9a-f]{32})"', page)
    for _ in range(2):  # a second press of the button
        done = await send(visitor, f"{path}/messages", text="more", agent="a", once=once)
        assert (done.status_code, done.headers["location"]) == (303, path)
    runs = (await world.call("GET", f"/sessions/{world.session}/runs"))["data"]
    assert [run["input"] for run in runs][:-1] == ["more"]
    page = (await visitor.get(path)).text
    assert f'data-stream="{path}/runs/{runs[0]["id"]}/stream?after=' in page
    assert 'name="on_busy"' in page
    busy = await send(visitor, f"{path}/messages", text="even more", agent="a", on_busy="reject")
    assert busy.status_code == 409
    for on_busy in ("enqueue", "steer"):
        done = await send(visitor, f"{path}/messages", text=on_busy, agent="a", on_busy=on_busy)
        assert done.status_code == 303, done.text
    runs = (await world.call("GET", f"/sessions/{world.session}/runs"))["data"]
    assert "enqueue" in [run["input"] for run in runs]
    assert "Queued behind it: enqueue" in (await visitor.get(path)).text
    stopped = await send(visitor, f"{path}/cancel")
    assert stopped.status_code == 303


async def test_a_conversation_is_begun_and_closed(visitor: httpx.AsyncClient, play):
    done = await send(visitor, "/console/sessions", text="hello", agent="a")
    path = done.headers["location"]
    assert re.fullmatch("/console/sessions/sess_[0-9a-f]{32}", path)
    (run,) = await sql(play.db, "SELECT id, session_id FROM runs")
    assert (await send(visitor, f"{path}/close")).status_code == 409
    await play.step(run["id"], say())
    assert (await send(visitor, f"{path}/close")).status_code == 303
    page = (await visitor.get(path)).text
    assert "closed: it can be read" in page
    assert "Send a message" not in page
    nobody = await send(visitor, "/console/sessions", text="", agent="a")
    assert nobody.status_code == 422


@only("failing")
async def test_a_breaker_is_closed(login_as: LogIn, world: World):
    operator = await login_as("operator")
    page = (await operator.get("/console/tools")).text
    assert "/console/tools/breakers/flaky/reset" in page
    assert (await send(operator, "/console/tools/breakers/flaky/reset")).status_code == 303
    assert (await world.call("GET", "/tools/breakers"))["data"] == []
    await sql(
        world.play.db,
        "INSERT INTO tool_breakers (tenant_id, tool, state, failures, reason) "
        "VALUES (:t, 'model:openai/gpt-5', 'open', 5, 'x')",
        t=world.tenant.id,
    )
    assert "openai/gpt-5" in (await operator.get("/console/tools")).text
    done = await send(operator, "/console/tools/models/reset", model="openai/gpt-5")
    assert done.status_code == 303
    assert (await world.call("GET", "/models/breakers"))["data"] == []


@only("built")
async def test_a_tool_is_disabled_and_enabled(visitor: httpx.AsyncClient, world: World):
    for verb, status in (("disable", "disabled"), ("enable", "enabled")):
        assert (await send(visitor, f"/console/tools/fetch_it/{verb}")).status_code == 303
        assert (await world.call("GET", "/tools/fetch_it"))["status"] == status


@only("built")
async def test_a_schedule_is_paused_resumed_and_fired(visitor: httpx.AsyncClient, world: World):
    path = "/console/schedules/nightly"
    assert (await send(visitor, f"{path}/pause", reason="holiday")).status_code == 303
    assert (await world.call("GET", "/schedules/nightly"))["pause_reason"] == "holiday"
    page = (await visitor.get(path)).text
    assert "None: it is paused" in page
    assert (await send(visitor, f"{path}/resume")).status_code == 303
    assert (await world.call("GET", "/schedules/nightly"))["status"] == "active"
    assert (await send(visitor, f"{path}/trigger")).status_code == 303
    assert len((await world.call("GET", "/schedules/nightly/firings"))["data"]) == 2


@only()
async def test_a_key_is_made_shown_once_rotated_and_revoked(
    visitor: httpx.AsyncClient, world: World, login_as: LogIn
):
    page = await send(visitor, "/console/keys", name="ann", role="operator", days="7")
    assert page.status_code == 200, page.text
    (secret,) = re.findall(r"<pre[^>]*>(hk_[0-9a-f]+_[\w-]+)</pre>", page.text)
    assert page.headers["cache-control"] == "no-store"
    assert secret not in (await visitor.get("/console/keys")).text
    ann = await login_as(key=secret)
    assert (await ann.get("/console/runs")).status_code == 200
    assert (await ann.get("/console/keys")).status_code == 403
    key = next(k for k in (await world.call("GET", "/api-keys"))["data"] if k["name"] == "ann")
    assert key["expires_at"] is not None
    rotated = await send(visitor, f"/console/keys/{key['id']}/rotate")
    assert re.search(r"<pre[^>]*>hk_[0-9a-f]+_[\w-]+</pre>", rotated.text)
    assert (await send(visitor, f"/console/keys/{key['id']}/revoke")).status_code == 303
    assert (await ann.get("/console/runs")).status_code == 303
    for bad in ({"name": "", "role": "viewer"}, {"name": "x", "role": "king"}, {"days": "x"}):
        given = {"name": "x", "role": "viewer"} | bad
        assert (await send(visitor, "/console/keys", **given)).status_code == 422


@only()
async def test_a_webhook_is_added_held_tested_and_told_again(
    visitor: httpx.AsyncClient, world: World
):
    added = await visitor.get("/console/webhooks")
    token = re.search(r'name="csrf" value="([0-9a-f]{64})"', added.text)
    assert token is not None
    fields = {"csrf": token[1], "url": "https://x.test/", "types": ["run.failed", "run.succeeded"]}
    made = await visitor.post("/console/webhooks", data=fields)
    assert "whsec_" in made.text
    hook = next(
        h for h in (await world.call("GET", "/webhooks"))["data"] if h["url"] == "https://x.test/"
    )
    assert hook["types"] == ["run.failed", "run.succeeded"]
    path = f"/console/webhooks/{hook['id']}"
    for verb, status in (("disable", "disabled"), ("enable", "enabled")):
        assert (await send(visitor, f"{path}/{verb}")).status_code == 303
        assert (await world.call("GET", f"/webhooks/{hook['id']}"))["status"] == status
    assert (await send(visitor, f"{path}/test")).status_code == 303
    (one,) = (await world.call("GET", f"/webhooks/{hook['id']}/deliveries"))["data"]
    for status, attempt, offered in (
        ("pending", 0, False),
        ("pending", 3, True),
        ("failed", 9, True),
    ):
        await sql(
            world.play.db, f"UPDATE webhook_deliveries SET status = '{status}', attempt = {attempt}"
        )
        assert ("Send again" in (await visitor.get(path)).text) is offered, (status, attempt)
    assert (await send(visitor, f"{path}/deliveries/{one['id']}/redeliver")).status_code == 303
    (one,) = (await world.call("GET", f"/webhooks/{hook['id']}/deliveries"))["data"]
    assert (one["status"], one["attempts"]) == ("pending", 0)
    assert "whsec_" in (await send(visitor, f"{path}/rotate")).text
    assert (await send(visitor, f"{path}/remove")).status_code == 303
    assert (await visitor.get(path)).status_code == 404


@only()
async def test_limits_are_changed(visitor: httpx.AsyncClient, world: World):
    given = {"max_running": "7", "weight": "2.5", "starts_per_s": "", "tokens_per_day": "1,000"}
    assert (await send(visitor, "/console/tenants/limits", **given)).status_code == 303
    limits = (await world.call("GET", "/tenant"))["limits"]
    assert (limits["max_running"], limits["weight"], limits["tokens_per_day"]) == (7, 2.5, 1000)
    wrong = [("weight", "heavy"), ("max_running", "inf"), ("max_running", "nan")]
    wrong += [("cost_usd_per_day", "1,5"), ("cost_usd_per_day", "inf"), ("max_running", "1.5")]
    for name, text in wrong:
        bad = await send(visitor, "/console/tenants/limits", **{name: text})
        assert bad.status_code == 422
        assert name in bad.text
    assert "All tenants together" not in (await visitor.get("/console/tenants")).text
    assert (await send(visitor, "/console/tenants/platform/limits", weight="1")).status_code == 403


async def test_an_operator_changes_the_limits_of_others(login_as: LogIn, tenant, other_tenant, db):
    await sql(db, "UPDATE tenants SET operator = true WHERE name = 'first'")
    visitor = await login_as("admin")
    page = (await visitor.get("/console/tenants")).text
    other = encode("tenant", other_tenant.id)
    assert other in page
    assert "All tenants together" in page
    done = await send(visitor, f"/console/tenants/{other}/limits", max_running="3")
    assert done.headers["location"] == f"/console/tenants/{other}"
    (slots,) = await sql(
        db, "SELECT max_running FROM tenant_slots WHERE tenant_id = :t", t=other_tenant.id
    )
    assert slots["max_running"] == 3
    await send(visitor, "/console/tenants/platform/limits", max_running="50", steps_per_s="")
    assert 'value="50"' in (await visitor.get("/console/tenants")).text


@only("built")
async def test_a_fact_is_forgotten(visitor: httpx.AsyncClient, world: World):
    await send(visitor, f"/console/memories/{world.memory['id']}/forget")
    assert (await world.call("GET", "/memories"))["data"] == []


async def test_a_viewer_may_do_none_of_it(login_as: LogIn, world: World):
    viewer = await login_as("viewer")
    one, hook = world.effect, world.hook["id"]
    key = encode("api_key", world.tenant.rows["operator"]["id"])
    tenant = encode("tenant", world.tenant.id)
    for path in (
        "sessions", f"sessions/{world.session}/messages", f"sessions/{world.session}/cancel",
        f"sessions/{world.session}/close", f"approvals/{world.approval['id']}/approve",
        f"approvals/{world.approval['id']}/deny", f"effects/{one['run_id']}/{one['call']}/resolve",
        "tools/breakers/flaky/reset", "tools/models/reset", "tools/fetch_it/disable",
        "tools/fetch_it/enable", f"memories/{world.memory['id']}/forget", "schedules/nightly/pause",
        "schedules/nightly/resume", "schedules/nightly/trigger", "webhooks",
        *(f"webhooks/{hook}/{verb}" for verb in ("enable", "disable", "rotate", "test", "remove")),
        f"webhooks/{hook}/deliveries/msg_{'0' * 32}/redeliver", "tenants/limits",
        "tenants/platform/limits", f"tenants/{tenant}/limits", "keys", f"keys/{key}/rotate",
        f"keys/{key}/revoke",
    ):  # fmt: skip
        answer = await send(viewer, f"/console/{path}", reason="x")
        assert answer.status_code == 403, f"{path}: {answer.status_code}"
    assert (await asked(world))["status"] == "pending"
    for path in ("keys", "audit"):
        assert (await viewer.get(f"/console/{path}")).status_code == 403
    for path in world.pages():
        if not path.startswith(("/console/keys", "/console/audit")):
            page = (await viewer.get(path)).text
            forms = re.findall(r'<form method="post" action="([^"]+)"', page)
            assert set(forms) <= {"/console/logout"}, f"{path} offers {forms}"


@only("asked")
async def test_a_form_without_its_token_does_nothing(visitor: httpx.AsyncClient, world: World):
    path = f"/console/approvals/{world.approval['id']}/deny"
    bare = await visitor.post(path, data={"reason": "x"})
    assert bare.status_code == 403
    assert (await asked(world))["status"] == "pending"


@only("work")
async def test_a_stream_of_a_session_is_for_who_may_read_it(
    login_as: LogIn, other_tenant, world: World, play
):
    path = f"/console/sessions/{world.session}/runs/{world.run}/stream"
    stranger = await login_as(key=other_tenant.keys["admin"])
    assert (await stranger.get(path)).status_code == 404
    told = await (await login_as("viewer")).get(path)
    assert told.headers["content-type"].startswith("text/event-stream")
    assert "event: run.completed" in told.text
    assert decode("run", world.run).hex in told.text
    rest = await (await login_as("viewer")).get(path, headers={"Last-Event-ID": "3"})
    assert "id: 3\n" not in rest.text
    assert "id: 4\n" in rest.text
