"""Finding runs: by words in the newest ones, by time through their ids, by status through an index
that has no others.
"""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from harness_common.store import run_reads
from harness_common.store.core_sql import _DIALECT
from harness_common.store.db import Database
from harness_common.store.run_reads import RunFilter, list_runs, searched_to
from harness_common.store.schema import runs
from tests.store.play import Play, make_tenant, sql


@pytest.fixture
async def play(db: Database) -> Play:
    return Play(db, await make_tenant(db))


async def _found(play: Play, before: UUID | None = None, **wanted: object) -> list[UUID]:
    filters = RunFilter(**wanted)  # type: ignore[arg-type]
    rows = await list_runs(play.db, play.tenant_id, filters, before=before, limit=100)
    return [row["id"] for row in rows]


async def test_words_are_found_as_they_stand_in_any_case(play: Play):
    one = await play.start("Lighter CARS, 100% of them")
    two = await play.start("other_things")
    assert await _found(play, text="cars") == [one]
    assert await _found(play, text="100%") == [one]
    assert await _found(play, text="0% O") == [one]
    assert await _found(play, text="r_t") == [two]  # no pattern: an underscore is one
    assert await _found(play, text="a") == [two, one]  # the agent's name
    assert await _found(play, text="none of it") == []


async def test_a_search_reads_so_many_runs_and_says_where_it_stopped(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(run_reads, "SEARCHED", 3)
    ids = [await play.start(f"needle {i}") for i in range(7)]
    db, tenant_id = play.db, play.tenant_id
    assert await _found(play, text="needle") == ids[:3:-1]
    first = await searched_to(db, tenant_id, None)
    assert first == ids[4]
    assert await _found(play, before=first, text="needle") == ids[3:0:-1]
    second = await searched_to(db, tenant_id, first)
    assert second == ids[1]
    assert await _found(play, before=second, text="needle") == [ids[0]]
    assert await searched_to(db, tenant_id, second) is None


async def test_times_are_those_of_the_rows(play: Play):
    run_id = await play.start()
    (row,) = await sql(play.db, "SELECT created_at FROM runs WHERE id = :r", r=run_id)
    made, tick = row["created_at"], timedelta(microseconds=1)
    assert await _found(play, created_after=made) == [run_id]
    assert await _found(play, created_after=made + tick) == []
    assert await _found(play, created_before=made + tick) == [run_id]
    assert await _found(play, created_before=made) == []


_MANY = """
INSERT INTO runs SELECT (jsonb_populate_record(NULL::runs, to_jsonb(r) || jsonb_build_object(
    'id', uuid7(), 'finished_at', now(), 'status', coalesce((ARRAY['failed', 'paused', 'waiting_input'])[n], 'succeeded')))).*
FROM runs r, generate_series(1, 800) AS n
"""  # noqa: E501


async def test_a_status_is_found_by_an_index_that_has_no_others(play: Play, database_url: str):
    """As the pool does it: one plan for all values, so that only what stands in the statement
    itself can tell that a partial index has all that is asked for.
    """
    await play.start()
    mine = runs.c.tenant_id == play.tenant_id
    plans = {}
    with psycopg.connect(database_url, prepare_threshold=0) as conn:
        conn.execute(_MANY)
        conn.execute("ANALYZE runs")
        conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        for status in ("failed", "paused", "waiting_input"):
            conditions = run_reads._conditions(RunFilter(statuses=[status]))
            query = run_reads._run_rows().where(mine, *conditions).limit(50)
            query = query.order_by(runs.c.id.desc())
            compiled = query.compile(dialect=_DIALECT, compile_kwargs={"render_postcompile": True})
            explain = f"EXPLAIN {compiled.string}".encode()
            rows = conn.execute(explain, dict(compiled.params)).fetchall()
            plans[status] = "\n".join(str(row[0]) for row in rows)
        conn.rollback()
    assert "runs_ended_idx" in plans["failed"]
    assert "runs_waiting_idx" in plans["paused"]
    assert "runs_waiting_idx" in plans["waiting_input"]
