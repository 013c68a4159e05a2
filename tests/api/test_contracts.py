"""Structured outputs and the statistics of repairs over the API, with the client and the CLI."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest

from harness_api.cli.main import run
from harness_api.client import ApiError, AsyncClient
from harness_common.core.guidance import Guidance
from harness_common.core.ids import decode
from harness_common.store.repairs import keep_repairs
from tests.store.play import say, sql

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def answered(output: str):
    """Build a final answer that its contract has read."""
    return replace(say("so it is"), guidance=Guidance(output=output))


@pytest.fixture
async def client(app, tenant):
    transport = httpx.ASGITransport(app)
    async with AsyncClient("http://api", tenant.keys["admin"], transport=transport) as made:
        yield made


async def test_an_output_with_a_schema_is_shown_parsed_too(client, play):
    run_ = await client.runs.create("a", "hi", output_schema=SCHEMA)
    assert run_.overrides == {"output_schema": SCHEMA}
    await play.step(decode("run", run_.id), answered('{"x":3}'))
    found = await client.runs.get(run_.id)
    assert (found.output, found.output_json) == ('{"x":3}', {"x": 3})
    assert [r.output_json async for r in client.runs.list()] == [{"x": 3}]


async def test_an_agents_schema_counts_and_without_one_nothing_is_parsed(client, play):
    await client.agents.apply("b", {"output_schema": SCHEMA})
    for agent, parsed in (("b", {"x": 3}), ("a", None)):
        run_ = await client.runs.create(agent, "hi")
        await play.step(decode("run", run_.id), answered('{"x":3}'))
        assert (await client.runs.get(run_.id)).output_json == parsed


async def test_a_retry_keeps_the_schema_of_its_run(client, play):
    run_ = await client.runs.create("a", "hi", output_schema=SCHEMA)
    await client.runs.cancel(run_.id)
    assert (await client.runs.retry(run_.id)).overrides == {"output_schema": SCHEMA}


async def keep(db, play, *, step=1, **kinds):
    run_ = await play.read(await play.start())
    await keep_repairs(db, run_, step, "openai/x", kinds)
    return run_


async def test_repairs_are_counted_by_month_and_only_the_tenants_own(
    api, client, db, play, other_tenant
):
    first = await keep(db, play, fence=1, coerced=2)
    await keep_repairs(db, first, 1, "openai/x", {"fence": 1})  # another attempt at the step
    await keep(db, play, fence=3)
    old = await keep(db, play, syntax=5)
    await sql(db, "UPDATE repairs SET at = '2025-12-31T23:59:59Z' WHERE run_id = :r", r=old.id)
    stats = await client.repairs.stats()
    assert (stats.month, stats.repairs) == (datetime.now(UTC).strftime("%Y-%m"), 4)
    assert stats.kinds == {"fence": 4}
    assert [(c.agent, c.model, c.kind, c.answers) for c in stats.data] == [
        ("a", "openai/x", "fence", 2)
    ]
    assert (await client.repairs.stats("2025-12")).kinds == {"syntax": 5}
    assert (await client.repairs.stats("2026-01")).repairs == 0
    assert (await client.repairs.stats(agent="other")).repairs == 0
    theirs = await api.get("/v1/repairs/stats", headers=other_tenant.headers("viewer"))
    assert theirs.json()["repairs"] == 0
    for month in ("2026-13", "2026", "x"):
        wrong = await api.get("/v1/repairs/stats", params={"month": month})
        assert wrong.status_code == 422


async def test_the_command_line(url, tenant, play, db, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HARNESS_API_URL", url)
    monkeypatch.setenv("HARNESS_API_KEY", tenant.keys["admin"])
    (tmp_path / "form.json").write_text(json.dumps(SCHEMA))

    async def call(*argv):
        code = await asyncio.to_thread(run, list(argv))
        captured = capsys.readouterr()
        lines = [x for x in captured.out.splitlines() if "request.served" not in x]
        return code, "\n".join(lines), captured.err

    form = str(tmp_path / "form.json")
    code, out, _ = await call("runs", "submit", "a", "hi", "--output-schema", form, "--json")
    made = json.loads(out)
    assert (code, made["overrides"]["output_schema"]) == (0, SCHEMA)
    await play.step(decode("run", made["id"]), answered('{"x":3}'))
    assert '{\n  "x": 3\n}' in (await call("runs", "show", made["id"]))[1]
    await keep(db, play, fence=2)
    code, out, _ = await call("repairs", "stats")
    assert code == 0
    assert "fence  2        1" in out
    code, out, _ = await call("repairs", "stats", "--month", "2020-01", "--json")
    assert json.loads(out)["data"] == []
    (tmp_path / "bad.json").write_text('{"type": "array"}')
    bad = str(tmp_path / "bad.json")
    code, _, err = await call("runs", "submit", "a", "hi", "--output-schema", bad)
    assert code == 1
    assert "OUTPUT_SCHEMA_INVALID" in err


async def test_only_the_step_that_is_meant_is_interrupted(client, play):
    run_ = await client.runs.create("a", "hi")
    with pytest.raises(ApiError) as refused:
        await client.runs.interrupt(run_.id, "pause", step=2)
    assert (refused.value.status, refused.value.error_code) == (409, "OTHER_STEP")
    assert not (await client.runs.get(run_.id)).pause_requested
    with pytest.raises(ApiError, match="text"):
        await client.runs.interrupt(run_.id, "steer", step=1)
    await client.runs.interrupt(run_.id, "steer", step=1, text="only March")
    assert (await client.runs.interrupt(run_.id, "pause", step=1)).status == "paused"
    assert (await client.runs.interrupt(run_.id, "pause", step=1)).status == "paused"
    assert (await client.runs.interrupt(run_.id, "cancel", step=1)).status == "cancelled"
    with pytest.raises(ApiError) as refused:
        await client.runs.interrupt(run_.id, "cancel", step=1)
    assert refused.value.error_code == "RUN_OVER"
