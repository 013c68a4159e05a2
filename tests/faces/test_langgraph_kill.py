"""A graph that is killed after one of three parallel effects does not repeat it. Bare LangGraph,
killed at the same place, does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from uuid import uuid4

import pytest

from harness_common.commands import resolve_effect
from harness_common.contracts.agent import AgentSpec
from harness_common.embedded import create_database, drop_database
from harness_common.settings import WorkerSettings
from harness_common.store.agents import put_agent
from harness_common.store.audit import Actor
from harness_common.store.effects import CallKey, Resolution
from tests.faces import doomed, graphs
from tests.faces.worker import working
from tests.store.play import Play, sql

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
def effects(tmp_path, monkeypatch):
    path = tmp_path / "effects"
    path.touch()
    monkeypatch.setenv("FACES_EFFECTS", str(path))
    return path


@contextlib.asynccontextmanager
async def process(*arguments: str, **env: str):
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faces.doomed", *arguments,
        env={**os.environ, **env, "FACES_SLOW_S": "60"},
    )  # fmt: skip
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.send_signal(signal.SIGKILL)
        await started.wait()


async def until(look) -> None:
    async with asyncio.timeout(140):
        while not await look():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.fixture
def bare_url(postgres):
    """Give an empty database: LangGraph's checkpointer makes its own tables."""
    name = f"bare_{uuid4().hex}"
    yield create_database(postgres.admin_url, name)
    drop_database(postgres.admin_url, name)


async def test_bare_langgraph_repeats_an_effect(effects, bare_url, monkeypatch):
    async def first_is_done() -> bool:
        return bool(effects.read_text() == "1\n")

    async with process("bare", FACES_BARE_URL=bare_url):
        await until(first_is_done)
    monkeypatch.setenv("FACES_BARE_URL", bare_url)
    assert await doomed.bare(first=False) == "3 done"
    assert sorted(effects.read_text().split()) == ["1", "1", "2", "3"]


async def test_a_run_does_not(effects, db, redis, config, tenant):
    spec = AgentSpec(kind="langgraph", foreign={"name": "with_tool_node"}, tools=("slow_note",))
    await put_agent(db, tenant.id, "g", spec, Actor("test"))
    config = config.model_copy(
        update={"frameworks": doomed.GRAPHS, "worker": WorkerSettings(lease_s=3, renew_s=0.5)}
    )
    play = Play(db, tenant.id)
    from harness_common.commands import StartRun, start_run

    run_id = (await start_run(db, tenant.id, StartRun("g", "hi"))).run_id

    async def first_is_on_record() -> bool:
        query = "SELECT status FROM tool_calls ORDER BY idx"
        found = [row["status"] for row in await sql(db, query)]
        return sorted(found) == ["running", "running", "succeeded"]

    async with process(
        "worker",
        HARNESS_DATABASE_URL=config.database_url,
        HARNESS_REDIS_URL=config.redis_url,
    ):
        await until(first_is_on_record)
    assert effects.read_text() == "1\n"

    async def waits() -> bool:
        state = (await play.read(run_id)).state
        assert state.status != "failed", state.error
        return state.status == "waiting_approval"

    async def is_over() -> bool:
        return (await play.read(run_id)).state.status == "succeeded"

    await sql(db, "UPDATE leader SET until = clock_timestamp()")  # it was the dead process
    async with working(db, redis, config, doomed.TOOLS):
        await until(waits)
        unknown = await sql(db, "SELECT step, idx FROM tool_calls WHERE status = 'unknown'")
        assert len(unknown) == 2, "two were under way: a person says that they did not happen"
        for row in unknown:
            key = CallKey(run_id, row["step"], row["idx"])
            said = Resolution("run_again", by="test", reason="looked")
            await resolve_effect(db, tenant.id, key, said, actor=Actor("test"))
        await until(is_over)
    assert (await play.read(run_id)).state.output == "3 done"
    assert sorted(effects.read_text().split()) == ["1", "2", "3"]
    assert graphs.effects() == effects
