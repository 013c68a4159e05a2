"""Starting runs against Postgres, also all at once."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from harness_common.commands import StartRun, cancel_run, retry_run, start_run
from harness_common.core.errors import Conflict, NotFound
from harness_common.core.run import Status
from tests.store.meeting import all_at_once
from tests.store.play import Play, make_tenant, say, sql


async def test_a_run_starts_at_once_when_there_is_room(play):
    started = await start_run(play.db, play.tenant_id, StartRun("a", "hi", tags={"k": "v"}))
    assert started.status is Status.RUNNING
    assert started.doorbell is not None
    assert started.doorbell.version == 1
    run = await play.read(started.run_id)
    assert (run.version, run.fence, run.claim_id, run.rings) == (1, 0, None, 1)
    assert [e["type"] for e in await play.events(run.id)] == ["run.created", "run.started"]
    assert await play.running() == 1
    (row,) = await sql(play.db, "SELECT wake_at > clock_timestamp() AS later FROM runs")
    assert row["later"], "a lost doorbell would not be found"


async def test_a_run_waits_when_somebody_waits_before_it_or_there_is_no_room(db):
    tenant_id = await make_tenant(db, granted=1)
    play = Play(db, tenant_id)
    first, second = await play.start(), await play.start()
    assert (await play.read(second)).state.status is Status.QUEUED
    await play.step(first, say())
    assert await play.running() == 0
    third = await play.start()
    assert (await play.read(third)).state.status is Status.QUEUED


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (StartRun("nobody", "x"), "AGENT_NOT_FOUND"),
        (StartRun("a", "x", agent_version=9), "AGENT_NOT_FOUND"),
        (StartRun("a", "x", session_id=uuid4()), "NOT_FOUND"),
    ],
)
async def test_what_cannot_start_leaves_nothing_behind(play, request_, code):
    with pytest.raises(NotFound) as caught:
        await start_run(play.db, play.tenant_id, replace(request_, idempotency_key="k"))
    assert caught.value.error_code == code
    for table in ("runs", "events", "messages", "sessions", "idempotency_keys"):
        assert await sql(play.db, f"SELECT 1 FROM {table}") == []


async def test_another_tenants_agent_and_run_are_not_there(play, db):
    other = Play(db, await make_tenant(db))
    run_id = await play.start()
    await sql(db, "DELETE FROM agents WHERE tenant_id = :t", t=other.tenant_id)
    with pytest.raises(NotFound):
        await other.start()
    with pytest.raises(NotFound):
        await cancel_run(db, other.tenant_id, run_id, by="x")
    with pytest.raises(NotFound):
        await retry_run(db, other.tenant_id, run_id, created_by="x")
    assert await other.try_claim(run_id, 1) is None


async def test_slots_are_never_exceeded_by_concurrent_starts(db, processes):
    """INV13: twenty at once in four processes, room for seven."""
    play = Play(db, await make_tenant(db, max_running=50, granted=7))
    starts = [replace(play, db=one).start() for one in processes for _ in range(5)]
    await all_at_once(play, starts, waiting=4)
    assert await play.running() == 7
    rows = await sql(
        db, "SELECT status, wake_at IS NULL AS idle, count(*) AS n FROM runs GROUP BY 1, 2"
    )
    assert {(r["status"], r["idle"]): r["n"] for r in rows} == {
        ("running", False): 7,
        ("queued", True): 13,
    }


async def test_twins_with_one_idempotency_key_are_one_run(play, processes):
    request = StartRun("a", "hi", idempotency_key="k", body_digest="d")
    twins = [start_run(db, play.tenant_id, request) for db in processes for _ in range(3)]
    made = await all_at_once(play, twins, waiting=4)
    assert len({m.run_id for m in made}) == 1
    assert sorted(m.replayed for m in made) == [False] + [True] * 11
    assert sum(m.doorbell is not None for m in made) == 1
    assert len({m.session_id for m in made}) == 1
    assert await sql(play.db, "SELECT count(*) AS n FROM runs") == [{"n": 1}]
    with pytest.raises(Conflict) as caught:
        await start_run(play.db, play.tenant_id, replace(request, body_digest="other"))
    assert caught.value.error_code == "IDEMPOTENCY_KEY_REUSED"


async def test_an_idempotency_key_past_its_time_is_taken_over(play):
    request = StartRun("a", "hi", idempotency_key="k", body_digest="d")
    first = await start_run(play.db, play.tenant_id, request)
    await sql(play.db, "UPDATE idempotency_keys SET created_at = created_at - interval '25 hours'")
    second = await start_run(play.db, play.tenant_id, replace(request, body_digest="e"))
    assert second.run_id != first.run_id
    assert not second.replayed


async def test_a_session_has_one_run_going(play):
    first = await play.start()
    session_id = (await play.read(first)).session_id
    with pytest.raises(Conflict) as caught:
        await play.start(session_id=session_id)
    assert caught.value.error_code == "SESSION_BUSY"
    await play.step(first, say())
    assert (await play.read(await play.start(session_id=session_id))).prev_run_id == first


async def test_concurrent_starts_in_one_session_give_one_run(play, processes):
    """The tenant's lock orders them; the session must then be read as it is, not as it was before
    the wait.
    """
    first = await play.start()
    session_id = (await play.read(first)).session_id
    await play.step(first, say())
    starts = [replace(play, db=one).start(session_id=session_id) for one in processes * 2]
    made = await all_at_once(play, starts, waiting=4)
    assert sum(isinstance(m, Conflict) for m in made) == 7, made
