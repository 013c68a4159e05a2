"""Slot-seconds: what a tenant has used of its slots is known exactly at any time, from its row."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from harness_common.commands import cancel_run, pause_run
from harness_common.core.inputs import StepDone
from harness_common.core.run import Status
from tests.store.play import WHEN, Play, make_tenant, say, sql

USED = (
    "SELECT used_s, running, turn_sum, used_s + running * extract(epoch FROM clock_timestamp()) "
    "- turn_sum AS now_s FROM tenant_slots WHERE tenant_id = :t"
)


async def used(play: Play) -> dict:
    (row,) = await sql(play.db, USED, t=play.tenant_id)
    return {k: float(v) for k, v in row.items()}


async def place(play: Play, run_id: UUID) -> float:
    """Claim the first step of a run and return how long it has to wait."""
    claimed = await play.try_claim(run_id, 1)
    assert claimed is not None
    return claimed.wait_s


async def test_a_running_run_is_charged_while_it_runs(play):
    run_id = await play.start()
    await asyncio.sleep(0.15)
    during = await used(play)
    assert during["used_s"] == 0
    assert 0.15 <= during["now_s"] < 2
    await play.step(run_id, say())
    after = await used(play)
    assert after["now_s"] == after["used_s"]
    assert after["used_s"] >= during["now_s"]
    assert (after["running"], after["turn_sum"]) == (0, 0)


async def test_a_waiting_run_is_charged_nothing(play):
    run_id = await play.start()
    await pause_run(play.db, play.tenant_id, run_id, by="ann")
    before = await used(play)
    await asyncio.sleep(0.1)
    assert (await used(play))["now_s"] == before["now_s"]


async def test_the_charge_is_the_sum_of_turns_that_overlap(play):
    runs = [await play.start(str(n)) for n in range(5)]
    await asyncio.sleep(0.1)
    for run_id in runs[:3]:
        await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    rows = await sql(play.db, "SELECT turn_at FROM runs WHERE status = 'running'")
    (clock,) = await sql(play.db, "SELECT clock_timestamp() AS now")
    live = sum((clock["now"] - row["turn_at"]).total_seconds() for row in rows)
    now = await used(play)
    assert now["used_s"] >= 0.3
    assert now["now_s"] == pytest.approx(now["used_s"] + live, abs=0.2)


@pytest.mark.parametrize("crowded", [False, True])
async def test_a_claim_says_whether_others_wait(play, crowded):
    await sql(play.db, "UPDATE tenant_slots SET crowded = :c", c=crowded)
    run_id = await play.start()
    claimed = await play.try_claim(run_id, 1)
    assert claimed.crowded is crowded
    done = StepDone(say(tools=["look"]), WHEN, turn_over=claimed.crowded)
    applied = await play.settle(claimed.run, done)
    assert applied.run.state.status is (Status.QUEUED if crowded else Status.RUNNING)
    assert await play.running() == (0 if crowded else 1)


async def test_steps_of_a_limited_tenant_get_places_one_after_another(play):
    """INV13: a claim starts at the rate, or is told when to come again."""
    await sql(
        play.db, "UPDATE tenant_slots SET steps_per_s = 2 WHERE tenant_id = :t", t=play.tenant_id
    )
    runs = [await play.start(str(n)) for n in range(4)]
    waits = [await place(play, run_id) for run_id in runs]
    for n, wait_s in enumerate(waits):
        assert n * 0.5 - 0.4 <= wait_s <= n * 0.5
    other = Play(play.db, await make_tenant(play.db))
    assert await place(other, await other.start()) == 0


async def test_a_place_far_away_is_looked_at_again_within_a_minute(play):
    await sql(play.db, "UPDATE tenant_slots SET steps_per_s = 0.01")
    waits = [await place(play, await play.start(str(n))) for n in range(4)]
    assert waits[0] == 0
    assert all(55 < wait_s <= 60 for wait_s in waits[1:])


async def test_the_platform_has_a_rate_over_all_tenants(play):
    await sql(
        play.db,
        "INSERT INTO platform (name, steps_per_s) VALUES ('global', 2) "
        "ON CONFLICT (name) DO UPDATE SET steps_per_s = 2, steps_tat = NULL",
    )
    try:
        other = Play(play.db, await make_tenant(play.db))
        assert await place(play, await play.start()) == 0
        assert 0.1 <= await place(other, await other.start()) <= 0.5
    finally:
        await sql(play.db, "UPDATE platform SET steps_per_s = NULL")
