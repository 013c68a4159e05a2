"""The example of a team, played as it stands: a supervisor with two children, and a hand-over."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import httpx

from harness_api.cli.agents import read_agent_file
from harness_api.schemas.agents import AgentPut
from harness_common.core.inputs import Admit, ChildrenDone
from harness_common.core.run import TERMINAL, Status
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_worker.models.registry import ModelRegistry
from harness_worker.runtime import Runtime
from tests.store.play import Play, make_key, sql
from tests.worker.runtime import make_runtime
from tests.worker.tool_steps import events, work

FOLDER = Path(__file__).parents[2] / "examples" / "team"


async def team(play: Play, db: Any) -> Runtime:
    """Put every agent of the example, and make a worker with the real scripted model."""
    for path in sorted(FOLDER.glob("*.yaml")):
        name, spec = read_agent_file(path)
        body = AgentPut.model_validate({"name": name, "spec": spec})
        await put_agent(db, play.tenant_id, body.name, body.spec.plain(), Actor("test"))
    runtime = await make_runtime(db)
    runtime.models = ModelRegistry(runtime.settings, httpx.AsyncClient())
    return runtime


async def start(play: Play, agent: str, text: str) -> UUID:
    """Start a run of an agent of the team."""
    key = await make_key(play.db, play.tenant_id)
    run_id = await play.start(text, created_by=key)
    (row,) = await sql(play.db, "SELECT id, spec FROM agents WHERE name = :n", n=agent)
    await sql(
        play.db,
        "UPDATE runs SET agent_id = :a, agent_name = :n, "
        "limits = jsonb_strip_nulls(limits || jsonb_build_object('max_tokens', CAST(:m AS int))) "
        "WHERE id = :r",
        a=row["id"], n=agent, r=run_id, m=row["spec"].get("max_tokens_total"),
    )  # fmt: skip
    return run_id


async def finish(runtime: Runtime, play: Play, run_id: UUID) -> None:
    """Work on a run and its children until it is over."""
    for _ in range(10):
        state = (await play.read(run_id)).state
        if state.status in TERMINAL:
            return
        if state.status is Status.WAITING_CHILDREN:
            rows = await sql(play.db, "SELECT id FROM runs WHERE parent_run_id = :p", p=run_id)
            for child in rows:
                await finish(runtime, play, child["id"])
            await play.apply(await play.read(run_id), ChildrenDone())
            await play.apply(await play.read(run_id), Admit())
            continue
        await work(runtime, play, run_id)
    raise AssertionError("it does not end")


async def test_a_supervisor_puts_together_what_its_children_found(play, db):
    runtime = await team(play, db)
    run_id = await start(play, "supervisor", "Write about tea.")
    await finish(runtime, play, run_id)
    run = await play.read(run_id)
    assert run.state.output == (
        "Tea is a drink. It is made of leaves and water. "
        "Tea has been drunk for some two thousand years."
    )
    children = await sql(
        db, "SELECT agent_name, depth, limits FROM runs WHERE parent_run_id = :p ORDER BY 1",
        p=run_id,
    )  # fmt: skip
    assert [(c["agent_name"], c["depth"]) for c in children] == [("researcher", 1), ("writer", 1)]
    shares = [c["limits"]["max_tokens"] for c in children]
    assert max(shares) - min(shares) <= 1, "each may use as much as the other"
    assert 40_000 < sum(shares) <= 50_000


async def test_a_triage_hands_over_without_the_number_of_the_card(play, db):
    runtime = await team(play, db)
    run_id = await start(play, "triage", "I was charged twice, card 4111 1111 1111 1111.")
    await finish(runtime, play, run_id)
    run = await play.read(run_id)
    assert run.state.output == "One of the two charges is given back."
    assert (run.acting.name, run.acting.version) == ("billing", 1)
    names = [e["type"] for e in await events(play, run_id, "")]
    assert "guardrail.rewrote" in names
    assert "run.handed_off" in names
