"""What the console's lists show, on the command line against the real API."""

from __future__ import annotations

import asyncio
import json

import pytest

from harness_api.cli.main import run
from harness_common.core.ids import decode, encode
from tests.fakes.tenant import make_tenant
from tests.store.play import make_worker, say


@pytest.fixture
def harness(url, tenant, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HARNESS_API_URL", url)
    monkeypatch.setenv("HARNESS_API_KEY", tenant.keys["admin"])
    monkeypatch.chdir(tmp_path)

    async def call(*argv):
        code = await asyncio.to_thread(run, list(argv))
        captured = capsys.readouterr()
        # The API runs in this process and logs to the same place.
        lines = captured.out.splitlines(keepends=True)
        return code, "".join(line for line in lines if "request.served" not in line), captured.err

    return call


async def test_the_audit_trail_is_filtered(harness, api):
    await api.post("/v1/agents", json={"name": "x", "spec": {}})
    _, out, _ = await harness("audit", "--action", "agent.put", "--since", "1h", "--json")
    assert [e["target"] for e in json.loads(out)["data"]] == ["x@1", "a@1"]
    _, out, _ = await harness("audit", "--target", "x@1", "--until", "1h")
    assert "Nothing yet" in out
    code, _, err = await harness("audit", "--since", "soon")
    assert (code, "--since takes" in err) == (2, True)


async def test_versions_of_an_agent_are_listed_and_compared(harness, api):
    for text in ("a\nb", "a\nc"):
        await api.post("/v1/agents", json={"name": "x", "spec": {"system": text}})
    _, out, _ = await harness("agents", "versions", "x")
    assert len(out.splitlines()) == 3
    _, out, _ = await harness("agents", "diff", "x")
    assert out.splitlines()[0] == "x v1 → v2"
    assert "  -b" in out
    assert "  +c" in out
    _, out, _ = await harness("agents", "diff", "x", "2", "1", "--json")
    assert json.loads(out)["changes"][0]["path"] == "system"
    code, _, err = await harness("agents", "diff", "x", "7")
    assert (code, "version 7" in err) == (1, True)


async def test_a_conversation_and_a_workers_runs_are_shown(harness, api, play, db):
    run_ = (await api.post("/v1/runs", json={"agent": "a", "input": "what?"})).json()
    await play.step(decode("run", run_["id"]), say("nine"))
    _, out, _ = await harness("sessions", "messages", run_["session_id"])
    assert out.index("what?") < out.index("nine")
    worker = await make_worker(db)
    other = (await api.post("/v1/runs", json={"agent": "a", "input": "x"})).json()
    await play.claim(decode("run", other["id"]), worker)
    _, out, _ = await harness("workers")
    assert encode("worker", worker) in out
    _, out, _ = await harness("workers", encode("worker", worker), "--json")
    assert [r["run_id"] for r in json.loads(out)["data"]] == [other["id"]]


async def test_an_operator_looks_after_tenants(harness, tenant, db, monkeypatch):
    other = encode("tenant", (await make_tenant(db, "acme")).id)
    code, _, err = await harness("platform", "tenants")
    assert code != 0
    assert "platform:read" in err
    async with db.connection() as conn:
        await conn.execute("UPDATE tenants SET operator = true WHERE name = 'first'")
    # The server remembers for some seconds what the key might do before.
    monkeypatch.setenv("HARNESS_API_KEY", await tenant.add_key("ops", "admin"))
    _, out, _ = await harness("platform", "tenants", "--json")
    assert {t["name"] for t in json.loads(out)["data"]} == {"first", "acme"}
    _, out, _ = await harness(
        "platform", "tenant-limits", other, "--max-running", "5", "--weight", "2", "--json"
    )
    assert json.loads(out)["limits"]["max_running"] == 5
    _, out, _ = await harness("platform", "tenant-limits", other)
    assert "acme" in out
