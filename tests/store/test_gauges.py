"""What the leading scheduler shows of all runs, counted in the real tables."""

from __future__ import annotations

import asyncio

from harness_common.store.db import Database
from harness_worker.scheduler import metrics
from harness_worker.scheduler.metrics import PlatformMetrics, families
from tests.store.play import Play, make_worker, sql

PARAMS = {"most": 100, "lease_s": 15.0}


async def gauges(db: Database, most: int = 100) -> dict[str, float]:
    """Return the samples by name, with the values of their labels."""
    row = await db.fetch_one("gauges", {**PARAMS, "most": most})
    assert row is not None
    return {
        " ".join([s.name, *s.labels.values()]): s.value for f in families(row) for s in f.samples
    }


async def test_an_empty_platform_is_all_zero(db):
    found = await gauges(db)
    answers = found.pop("harness_database_answers")
    assert answers == 1
    assert set(found.values()) == {0.0}
    assert "harness_runs waiting_approval" in found
    assert "harness_runs_queued admission" in found


async def test_everything_that_waits_is_counted_by_its_reason(db: Database, play: Play):
    await play.start()  # admitted
    session = (await sql(db, "SELECT session_id FROM runs"))[0]["session_id"]
    await play.start(session_id=session, on_busy="enqueue")
    await play.start(concurrency_key="k")
    await sql(db, "UPDATE tenant_slots SET granted = 0, max_running = 0")
    await play.start()
    await sql(
        db, "UPDATE runs SET queued_at = clock_timestamp() - interval '90 s' WHERE held_for IS NULL"
    )
    worker = await make_worker(db, concurrency=7)
    await make_worker(db, silent_s=60)
    await sql(db, "UPDATE workers SET held = 3 WHERE incarnation = :w", w=worker)
    found = await gauges(db)
    assert found["harness_runs running"] == 1
    assert found["harness_runs queued"] == 3
    assert found["harness_runs_queued admission"] == 1
    assert found["harness_runs_queued session"] == 1
    assert found["harness_runs_queued key"] == 1
    assert 89 < found["harness_queued_oldest_seconds"] < 120
    assert found["harness_workers_alive"] == 1
    assert (found["harness_worker_places"], found["harness_worker_runs_held"]) == (7, 3)


async def test_what_is_late_and_what_waits_for_people_is_seen(db: Database, play: Play):
    run_id = await play.start()
    await sql(db, "UPDATE runs SET wake_at = clock_timestamp() - interval '70 s'")
    for kind in ("tool", "model:x/y"):
        await sql(
            db,
            "INSERT INTO tool_breakers (tenant_id, tool, state, failures, opens, reason) "
            "VALUES (:t, :k, 'open', 5, 1, '')",
            t=play.tenant_id,
            k=kind,
        )
    await sql(
        db,
        "INSERT INTO approvals (tenant_id, run_id, step, idx, digest, status, created_at) VALUES "
        "(:t, :r, 1, 0, '', 'pending', clock_timestamp() - interval '2 h'), "
        "(:t, :r, 1, 1, '', 'pending', clock_timestamp()), "
        "(:t, :r, 1, 2, '', 'denied', clock_timestamp() - interval '9 h')",
        t=play.tenant_id,
        r=run_id,
    )
    await sql(
        db,
        "INSERT INTO tool_calls (tenant_id, run_id, step, tool_use_id, name, arguments, status,"
        " idx) VALUES (:t, :r, 1, '', 'x', '{}', 'unknown', 0)",
        t=play.tenant_id,
        r=run_id,
    )
    await sql(
        db,
        "INSERT INTO throttles (scope, until, next_at, code, reason) VALUES "
        "('a', clock_timestamp() + interval '9 s', clock_timestamp(), '', ''), "
        "('b', clock_timestamp() - interval '9 s', clock_timestamp(), '', '')",
    )
    await sql(
        db,
        "INSERT INTO webhooks (tenant_id, url, disabled_at) VALUES (:t, 'x', clock_timestamp())",
        t=play.tenant_id,
    )
    found = await gauges(db)
    assert 69 < found["harness_overdue_seconds"] < 100
    assert found["harness_breakers_open tool"] == found["harness_breakers_open model"] == 1
    assert found["harness_approvals_pending"] == 2
    assert 7_199 < found["harness_approvals_oldest_seconds"] < 7_300
    assert found["harness_unknown_effects"] == 1
    assert found["harness_throttled_scopes"] == 1
    assert found["harness_webhooks_disabled"] == 1


async def test_counts_stop_where_they_are_told(db: Database, play: Play):
    for _ in range(5):
        await play.start()
    assert (await gauges(db, most=3))["harness_runs running"] == 3


async def test_only_a_leader_shows_them_and_asks_seldom(db: Database, play: Play):
    await play.start()
    shown = PlatformMetrics(db, asyncio.get_running_loop(), 15.0)
    assert await asyncio.to_thread(lambda: list(shown.collect())) == []
    shown.lead(True)
    first = await asyncio.to_thread(lambda: {f.name: f for f in shown.collect()})
    assert first["harness_runs"].samples
    assert metrics.REGISTRY.get_sample_value("harness_leader") == 1
    await play.start()
    again = await asyncio.to_thread(lambda: {f.name: f for f in shown.collect()})
    assert again["harness_runs"].samples == first["harness_runs"].samples  # not asked again yet
    shown.lead(False)
    assert await asyncio.to_thread(lambda: list(shown.collect())) == []
    assert metrics.REGISTRY.get_sample_value("harness_leader") == 0
