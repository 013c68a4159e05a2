"""The analyst of the example under what is built in: nobody is asked, and its run succeeds."""

from __future__ import annotations

from typing import Any

from examples.analyst.agent import agent
from examples.analyst.prepare import prepare
from harness_common.blobs.local import LocalBlobs
from harness_common.commands import StartRun, start_run
from harness_common.contracts.agent import AgentSpec
from harness_common.core.run import Status
from harness_common.settings import Settings, ToolSettings
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_worker.advance import answer
from harness_worker.models.scripted import Scripted
from harness_worker.tools.registry import ToolRegistry
from tests.store.play import sql
from tests.worker.runtime import make_runtime


class _Models:
    """Knows the scripted model only."""

    def get(self, name: str) -> Scripted:
        return Scripted(name.partition("/")[2])


async def test_the_analyst_is_asked_about_nothing(play, db, tmp_path):
    (tmp_path / "outbox").mkdir()
    data = tmp_path / "data"
    data.mkdir()
    prepare(data)
    settings = Settings(tool=ToolSettings(file_root=tmp_path, sql_sources=data))
    runtime = await make_runtime(db, tools=ToolRegistry.from_settings(settings))
    models: Any = _Models()
    runtime.models, runtime.blobs = models, LocalBlobs(tmp_path / "blobs")
    made = agent()
    spec = AgentSpec.model_validate(made["spec"])
    await put_agent(db, play.tenant_id, "analyst", spec, Actor("test"))
    (key,) = await sql(
        db,
        "INSERT INTO api_keys (tenant_id, name, public_id, secret_hash, role) "
        "VALUES (:t, 'k', 'p', '', 'operator') RETURNING 'key_' || replace(id::text, '-', '') AS k",
        t=play.tenant_id,
    )
    request = StartRun("analyst", "How?", created_by=key["k"])
    run_id = (await start_run(db, play.tenant_id, request)).run_id
    run = await play.read(run_id)
    for _ in range(40):
        run = await play.read(run_id)
        if run.state.status is not Status.RUNNING:
            break
        await answer(runtime, play.tenant_id, run_id, run.version)
    calls = await play.calls(run_id)
    assert {(c["name"], c["status"], c["policy"]["verdict"]) for c in calls} == {
        (name, "succeeded", "allow") for name in spec.tools
    }
    assert run.state.status is Status.SUCCEEDED
    assert run.state.memo["marks"] == ["private"]
    assert len((tmp_path / "outbox" / "findings.txt").read_text().splitlines()) == 1
