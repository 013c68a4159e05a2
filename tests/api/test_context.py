"""What a model saw in a step: over the API, the client and the command line."""

from __future__ import annotations

import asyncio
import json

import pytest

from harness_api.cli.main import run
from harness_api.client import AsyncClient
from harness_common.core.ids import encode
from tests.worker.context_bench import CountingServer, open_bench

SMALL = {"window_tokens": 1_600, "rounds_kept": 3, "summary_tokens": 100}


@pytest.fixture
async def compacted(db, play):
    """Make a run that was compacted, and say how its server was asked."""
    server = CountingServer(14)
    async with open_bench(db, play, server) as bench:
        await bench.agent(context=SMALL)
        run = await bench.run()
        steps = await play.checkpoints(run.id)
    return run, {c["step"]: c["kind"] for c in steps}, server


async def test_the_context_of_a_step(api, url, tenant, compacted, other_tenant):
    run, kinds, server = compacted
    run_id = encode("run", run.id)
    last = max(kinds)
    found = (await api.get(f"/v1/runs/{run_id}/steps/{last}/context")).json()
    body = server.bodies[-1]
    assert found["system"] == body["messages"][0]["content"] == "You count cars."
    assert [t["name"] for t in found["tools"]] == ["look"]
    assert len(found["messages"]) == len(body["messages"]) - 1
    assert found["messages"][0]["kind"] == "summary"
    assert {m["kind"] for m in found["messages"]} == {"summary", "answers", "results"}
    assert found["left_out"][0]["why"] == "summarised"
    assert found["left_out"][0]["step"] in [s for s, kind in kinds.items() if kind == "compact"]
    tokens = found["tokens"]
    assert tokens["total"] <= tokens["limit"] == 1_280
    assert sum(m["tokens"] for m in found["messages"]) + tokens["by"]["system"] + tokens["by"][
        "tools"
    ] == sum(tokens["by"].values())
    first = (await api.get(f"/v1/runs/{run_id}/steps/1/context")).json()
    assert first["left_out"] == []
    assert [m["n"] for m in first["messages"]] == [1]
    async with AsyncClient(url, tenant.keys["viewer"]) as client:
        same = await client.runs.context(run_id, last)
        assert same.messages[0].kind == "summary"
        assert same.model_dump(mode="json") == found
        session = await client.sessions.get(encode("session", run.session_id))
        assert session.memory_summary is not None
        assert session.memory_summary.endswith("→ All done.")
    # Who else asks is told that there is no such run.
    api.headers.update(other_tenant.headers("admin"))
    assert (await api.get(f"/v1/runs/{run_id}/steps/{last}/context")).status_code == 404


async def test_a_step_that_asked_no_model_says_so(api, compacted):
    run, kinds, _ = compacted
    run_id = encode("run", run.id)

    async def refusal(step):
        answer = await api.get(f"/v1/runs/{run_id}/steps/{step}/context")
        assert answer.status_code == 404
        return answer.json()["detail"]

    compact = next(s for s, kind in kinds.items() if kind == "compact")
    assert f"step {compact} is a compact step" in await refusal(compact)
    assert "is a tools step" in await refusal(2)
    assert "is not committed" in await refusal(999)
    assert (await api.get(f"/v1/runs/{run_id}/steps/0/context")).status_code == 422
    nobody = "run_" + "0" * 32
    assert (await api.get(f"/v1/runs/{nobody}/steps/1/context")).status_code == 404


async def test_the_command(compacted, url, tenant, monkeypatch, capsys):
    made, kinds, _ = compacted
    monkeypatch.setenv("HARNESS_API_URL", url)
    monkeypatch.setenv("HARNESS_API_KEY", tenant.keys["viewer"])
    run_id, last = encode("run", made.id), str(max(kinds))

    async def call(*argv):
        code = await asyncio.to_thread(run, ["runs", "context", *argv])
        captured = capsys.readouterr()
        lines = [line for line in captured.out.splitlines() if "request.served" not in line]
        return code, "\n".join(lines), captured.err

    code, out, _ = await call(run_id, last)
    assert code == 0
    assert "limit 1280" in out
    assert "summary" in out
    assert "Left out:" in out
    code, out, _ = await call(run_id, last, "--full")
    assert "What the user said:" in out
    code, out, _ = await call(run_id, last, "--json")
    assert json.loads(out)["messages"][0]["kind"] == "summary"
    code, _, err = await call(run_id, "2")
    assert code == 1
    assert "tools step" in err
