"""The command line over many runs, against the real API on a real port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness_api.cli.main import run
from harness_common.core.ids import decode
from harness_common.core.inputs import StepFailed
from harness_common.core.step import Failure
from tests.store.play import WHEN


@pytest.fixture
def harness(
    url, tenant, tmp_path, monkeypatch, capsys
) -> Callable[..., Awaitable[tuple[int, Any]]]:
    """Run a command line against the API; return its exit code and what it printed as JSON."""
    monkeypatch.setenv("HARNESS_API_URL", url)
    monkeypatch.setenv("HARNESS_API_KEY", tenant.keys["admin"])
    monkeypatch.setenv("HARNESS_DATA_DIR", str(tmp_path))

    async def call(*argv: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = await asyncio.to_thread(run, [*argv, "--json"])
        text = capsys.readouterr().out  # the API logs there too
        return code, json.JSONDecoder().raw_decode(text[text.index("{\n") :])[0]

    return call


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


async def test_of_two_bulk_retries_at_once_one_retries_each_run(api, play):
    (run,) = await failed_runs(api, play, 1, "LIMITED")
    path, body = f"/v1/runs/{run}/retry", {"if_not_retried": True}
    answers = await asyncio.gather(*(api.post(path, json=body) for _ in range(6)))
    codes = sorted(a.status_code for a in answers)
    assert codes == [202] + [409] * 5
    retry = next(a.json()["id"] for a in answers if a.status_code == 202)
    refused = [a.json() for a in answers if a.status_code == 409]
    assert {(r["code"], r["retry"]) for r in refused} == {("ALREADY_RETRIED", retry)}
    await play.step(decode("run", retry), StepFailed(Failure("permanent", "LIMITED", "no"), WHEN))
    late = await api.post(path, json=body)
    assert (late.status_code, late.json()["code"]) == (409, "ALREADY_RETRIED")
    assert (await api.post(path)).status_code == 202  # who wants another gets one


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
