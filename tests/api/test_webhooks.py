"""Webhooks over HTTP and from the command line."""

from __future__ import annotations

import asyncio
import json

import pytest

from harness_api.cli.main import run
from harness_common.core.webhook import secret_of
from tests.fakes.tenant import PEPPER
from tests.store.play import say

HOOK = {"url": "https://ops.example.com/hook", "types": ["run.failed", "run.succeeded"]}


async def test_a_secret_is_shown_when_it_is_made_and_not_again(api):
    made = await api.post("/v1/webhooks", json=HOOK)
    assert made.status_code == 201, made.text
    hook = made.json()
    assert hook["secret"].startswith("whsec_")
    assert hook["secret"] not in (await api.get(f"/v1/webhooks/{hook['id']}")).text
    assert hook["secret"] not in (await api.get("/v1/webhooks")).text
    turned = (await api.post(f"/v1/webhooks/{hook['id']}/rotate")).json()
    assert turned["secret"] != hook["secret"]
    from harness_common.core.ids import decode

    assert turned["secret"] == secret_of(PEPPER, decode("webhook", hook["id"]), 2)


async def test_deliveries_are_listed_held_and_sent_again(api, play):
    hook = (await api.post("/v1/webhooks", json=HOOK)).json()
    path = f"/v1/webhooks/{hook['id']}"
    tested = await api.post(f"{path}/test")
    assert (tested.status_code, tested.json()["type"]) == (202, "webhook.test")
    run_id = await play.start()
    await play.step(run_id, say())
    listed = (await api.get(f"{path}/deliveries?limit=1")).json()
    assert [d["type"] for d in listed["data"]] == ["run.succeeded"]
    more = (await api.get(f"{path}/deliveries?cursor={listed['next_cursor']}")).json()["data"]
    assert [d["id"] for d in more] == [tested.json()["id"]]
    assert (await api.post(f"{path}/disable")).json()["status"] == "disabled"
    assert {d["status"] for d in (await api.get(f"{path}/deliveries")).json()["data"]} == {"held"}
    again = f"{path}/deliveries/{more[0]['id']}/redeliver"
    assert (await api.post(again)).status_code == 409
    assert (await api.post(f"{path}/enable")).json()["status"] == "enabled"
    assert (await api.post(again)).json()["status"] == "pending"
    assert (await api.post(f"{path}/deliveries/msg_{0:032x}/redeliver")).status_code == 404
    assert (await api.delete(path)).status_code == 204
    assert (await api.get(path)).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        HOOK | {"url": "ftp://x"},
        HOOK | {"url": "https://u:p@x/"},
        HOOK | {"types": []},
        HOOK | {"types": ["run.started"]},
        HOOK | {"more": 1},
    ],
)
async def test_what_is_no_webhook_is_refused(api, body):
    assert (await api.post("/v1/webhooks", json=body)).status_code == 422


async def test_only_an_admin_says_whom_to_tell(api, tenant):
    for role in ("viewer", "operator", "approver"):
        answer = await api.post("/v1/webhooks", json=HOOK, headers=tenant.headers(role))
        assert answer.status_code == 403


async def test_the_command_line(url, tenant, monkeypatch, capsys):
    monkeypatch.setenv("HARNESS_API_URL", url)
    monkeypatch.setenv("HARNESS_API_KEY", tenant.keys["admin"])

    async def harness(*argv):
        code = await asyncio.to_thread(run, ["webhooks", *argv])
        lines = capsys.readouterr().out.splitlines(keepends=True)
        return code, "".join(line for line in lines if "request.served" not in line)

    code, out = await harness("add", HOOK["url"], "--type", "run.failed")
    assert (code, out.startswith("whsec_"), len(out.splitlines())) == (0, True, 1)
    hook = json.loads((await harness("list", "--json"))[1])["data"][0]["id"]
    assert HOOK["url"] in (await harness("show", hook))[1]
    assert "pending" in (await harness("test", hook))[1]
    told = json.loads((await harness("deliveries", hook, "--json"))[1])["data"]
    assert "pending" in (await harness("redeliver", hook, told[0]["id"]))[1]
    assert "webhook.test" in (await harness("deliveries", hook))[1]
    assert "disabled" in (await harness("disable", hook))[1]
    assert "enabled" in (await harness("enable", hook))[1]
    assert (await harness("rotate", hook))[1].startswith("whsec_")
    assert (await harness("remove", hook))[0] == 0
    assert (await harness("show", hook))[0] == 1
