"""The command line over many runs, against the real API on a real port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import uvicorn

from harness_api.cli.main import run
from harness_common.core.ids import decode
from harness_common.core.inputs import StepFailed
from harness_common.core.step import Failure
from tests.store.play import WHEN


@pytest.fixture
async def harness(
    app, tenant, tmp_path, monkeypatch, capsys
) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Run a command line against `app`; return its exit code and what it printed as JSON."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - it has no signal for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    monkeypatch.setenv("HARNESS_API_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("HARNESS_API_KEY", tenant.keys["admin"])
    monkeypatch.setenv("HARNESS_DATA_DIR", str(tmp_path))

    async def call(*argv: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = await asyncio.to_thread(run, [*argv, "--json"])
        lines = capsys.readouterr().out.splitlines()
        return code, json.loads("\n".join(lines[lines.index("{") :]))

    yield call
    server.should_exit = True
    await serving


async def failed_runs(api, play, count: int, code: str) -> list[str]:
    made = []
    for _ in range(count):
        body = {"agent": "a", "input": "x", "tags": {"team": "sales"}}
        made.append((await api.post("/v1/runs", json=body)).json()["id"])
        failure = Failure("permanent", code, "no")
        await play.step(decode("run", made[-1]), StepFailed(failure, WHEN))
    return made


async def test_a_bulk_retry_that_is_repeated_does_nothing_twice(api, play, harness):
    limited = await failed_runs(api, play, 3, "LIMITED")
    await failed_runs(api, play, 1, "OTHER")
    where = "status=failed,error.code=LIMITED,tag.team=sales"
    argv = ("runs", "retry", "--where", where, "--since", "1h", "--yes")
    code, report = await harness(*argv)
    assert code == 0
    assert sorted(r["run"] for r in report["made"]) == limited
    again, nothing = await harness(*argv)
    assert (again, nothing["matched"], nothing["made"]) == (0, 0, [])
    runs = (await api.get("/v1/runs", params={"limit": 200})).json()["data"]
    assert len(runs) == 4 + 3
    assert {r["forked_from"]["run_id"] for r in runs if r["forked_from"]} == set(limited)


async def test_bulk_is_bounded_and_goes_on_where_it_stopped(api, play, harness):
    await failed_runs(api, play, 3, "LIMITED")
    argv = ("runs", "retry", "--where", "error.code=LIMITED", "--limit", "2", "--yes")
    counts = [len((await harness(*argv))[1]["made"]) for _ in range(3)]
    assert counts == [2, 1, 0]


async def test_bulk_pause_resume_and_cancel(api, harness):
    for _ in range(2):
        await api.post("/v1/runs", json={"agent": "a", "input": "x"})
    for verb, status in (("pause", "paused"), ("resume", "queued"), ("cancel", "cancelled")):
        code, report = await harness("runs", verb, "--where", "agent=a", "--yes")
        assert (code, [r["status"] for r in report["made"]]) == (0, [status] * 2)
        assert report["skipped"] == []
