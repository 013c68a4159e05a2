"""Approvals with real processes: three of one answer, answered out of order, one edited, one
denied, one expired, the scheduler killed and started in between. Each is right, none runs twice.
"""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from harness_api.cli import main as cli
from harness_common.core.approval import digest
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

EXPIRES_S = 45
"""Long enough for two commands on a busy machine."""


def agent() -> dict[str, Any]:
    calls = [
        {"name": "pay", "input": {"to": "ann", "amount": 1}},
        {"name": "note", "input": {"text": "asked"}},
        {"name": "pay", "input": {"to": "bob", "amount": 2}},
        {"name": "pay", "input": {"to": "carol", "amount": 300}},
    ]
    script = [{"text": "pay all", "tools": calls}, {"text": "told: {{last_result}}"}]
    spec = {"model": "scripted/a", "tools": ["pay", "note"], "model_options": {"script": script}}
    return {"name": "a", "spec": spec}


def until(stack: Stack, client: httpx.Client, run_id: str, status: str, within_s: float) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        view = client.get(f"/v1/runs/{run_id}").json()
        if view["status"] == status:
            return view
        if time.monotonic() > deadline:
            logs = stack.log_of("worker-t")[-1500:] + stack.log_of("scheduler-0")[-1500:]
            raise AssertionError(f"{view['status']}, not {status}: {view}\n{logs}")
        time.sleep(0.1)


def test_three_approvals_of_one_answer_out_of_order(monkeypatch, capsys):
    def harness(*arguments: str) -> str:
        """Run a command line; return what it printed."""
        code = cli.run(list(arguments))
        said = capsys.readouterr()
        assert code == 0, said.err
        return str(said.out)

    stack = Stack(
        workers=0,
        HARNESS_TOOL__APPROVAL_EXPIRES_S=str(EXPIRES_S),
    )
    with stack, stack.client() as client:
        stack.env["EFFECTS"] = str(stack.effects)
        stack.effects.touch()
        stack.add_worker("worker-t", "--tools", "tests.e2e.approval_tools")
        made = client.post("/v1/api-keys", json={"name": "p", "role": "approver"}).json()
        monkeypatch.setenv("HARNESS_API_URL", f"http://127.0.0.1:{stack.api_ports[0]}")
        monkeypatch.setenv("HARNESS_API_KEY", made["secret"])
        rules = "rules: [{name: risky, match: {risk_at_least: high}, then: ask}]"
        assert client.post("/v1/policies", json={"source": rules}).is_success
        assert client.post("/v1/agents", json=agent()).is_success
        run = client.post("/v1/runs", json={"agent": "a", "input": "pay"}).json()
        waiting = until(stack, client, run["id"], "waiting_approval", 240)
        begun = time.monotonic()
        assert [c["call"] for c in waiting["waiting"]["calls"]] == ["2.0", "2.2", "2.3"]
        assert stack.effects.read_text().splitlines() == ["note asked 2.1"]

        # Nobody is at work on it: the scheduler is away, and the worker holds nothing.
        stack.kill("scheduler-0")
        held = stack.query("SELECT claim_id FROM runs WHERE status = 'waiting_approval'")
        assert held == [{"claim_id": None}]

        # The last one first, with other arguments, over the CLI; then the middle one is denied.
        listed = json.loads(harness("approvals", "list", "--json"))
        by_call = {a["call"]: a for a in listed["data"]}
        assert set(by_call) == {"2.0", "2.2", "2.3"}
        shown = harness("approvals", "show", by_call["2.3"]["id"])
        assert "Dear carol, here are 300." in shown
        harness(
            "approvals", "approve", by_call["2.3"]["id"], "--set", "amount=30", "--yes",
            "--reason", "that is enough",
        )  # fmt: skip
        harness("approvals", "deny", by_call["2.2"]["id"], "--reason", "not bob")
        assert time.monotonic() - begun < EXPIRES_S - 1, "the machine was too slow for this test"

        # Nobody decides about the first one; its time is over while no scheduler is there.
        late = by_call["2.0"]
        while client.get(f"/v1/approvals/{late['id']}").json()["expires_at"] > _now(stack):
            time.sleep(0.2)
        refused = client.post(
            f"/v1/approvals/{late['id']}/approve", json={"expected_digest": late["digest"]}
        )
        assert (refused.status_code, refused.json()["code"]) == (409, "APPROVAL_EXPIRED")
        assert client.get(f"/v1/runs/{run['id']}").json()["status"] == "waiting_approval"
        stack.start("scheduler-0")
        until(stack, client, run["id"], "succeeded", 120)

        assert stack.effects.read_text().splitlines() == ["note asked 2.1", "pay carol 30 2.3"]
        found = client.get("/v1/approvals", params={"run_id": run["id"]}).json()["data"]
        ends = {a["call"]: a["status"] for a in found}
        assert ends == {"2.0": "expired", "2.2": "denied", "2.3": "used"}
        used = next(a for a in found if a["call"] == "2.3")
        assert used["original_arguments"] == {"to": "carol", "amount": 300}
        assert used["digest"] == digest("pay", {"to": "carol", "amount": 30})
        calls = client.get(f"/v1/runs/{run['id']}/messages").json()["data"][2]["content"]
        told = [block["content"] for block in calls]
        assert "APPROVAL_EXPIRED" in told[0]
        assert told[1] == "noted"
        assert "not bob" in told[2]
        assert told[3].endswith("paid 30 to carol")
        assert "a person changed the arguments" in told[3]
        types = [e["type"] for e in _events(client, run["id"])]
        assert [types.count(f"approval.{w}") for w in ("requested", "decided", "expired")] == [
            3, 2, 1,
        ]  # fmt: skip


def _now(stack: Stack) -> str:
    (row,) = stack.query("SELECT clock_timestamp() AT TIME ZONE 'UTC' AS now")
    return str(row["now"].isoformat()) + "Z"


def _events(client: httpx.Client, run_id: str) -> list[dict[str, Any]]:
    page = client.get(f"/v1/runs/{run_id}/events", params={"limit": 200}).json()
    events: list[dict[str, Any]] = page["data"]
    return events
