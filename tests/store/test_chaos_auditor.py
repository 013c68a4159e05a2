"""The auditor of the chaos tests sees each damage that it is there for, and none where there is
none.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.chaos.auditor import Audit, Expected, audit
from tests.store.play import Play, ran, say, sql

LINE = "the line"
EVENT = (
    "WITH r AS (UPDATE runs SET next_seq = next_seq + 1 RETURNING tenant_id, id, next_seq - 1 AS n)"
    " INSERT INTO events (tenant_id, run_id, seq, type, step) SELECT tenant_id, id, n, "
)
DAMAGES = [
    ("lost", "DELETE FROM runs"),
    ("lost_steps", "DELETE FROM checkpoints WHERE step = 2"),
    ("duplicated_steps", f"{EVENT} 'step.completed', 2 FROM r"),
    ("event_gaps", "DELETE FROM events WHERE seq = 2"),
    ("event_gaps", "UPDATE runs SET next_seq = next_seq + 1"),
    ("double_terminals", f"{EVENT} 'run.completed', NULL FROM r"),
    ("double_terminals", "UPDATE runs SET status = 'failed'"),
    ("stuck", "UPDATE runs SET status = 'delayed'"),
    ("stuck", "UPDATE runs SET status = 'waiting_approval'"),
    ("still_claimed", "UPDATE runs SET claim_id = id"),
    ("failed", "UPDATE runs SET status = 'failed'"),
    ("wrong_slots", "UPDATE tenant_slots SET running = 1"),
    ("lost_effects", 'UPDATE tool_calls SET arguments = \'{"line": "another"}\''),
    ("unrecorded_effects", "DELETE FROM tool_calls"),
    ("unrecorded_effects", "UPDATE tool_calls SET status = 'proposed'"),
]


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    path = tmp_path / "effects.txt"
    path.write_text(f"{LINE}\n")
    return path


@pytest.fixture
async def run_id(play: Play, db) -> UUID:
    """A run of three steps that has left one line outside."""
    made = await play.start()
    await play.step(made, say(tools=["append_line"]))
    await sql(db, "UPDATE tool_calls SET arguments = json_build_object('line', :l)", l=LINE)
    await play.step(made, ran("ok"))
    await play.step(made, say())
    return made


@pytest.fixture
def look(database_url, run_id: UUID, effects: Path):
    def look(expected: Expected | None = None) -> Audit:
        known = {f"run_{run_id.hex}": expected or Expected("sleeper")}
        with psycopg.connect(database_url, row_factory=dict_row) as conn:
            return audit(lambda q, *p: conn.execute(q, p).fetchall(), known, effects)

    return look


async def test_a_good_run_is_blamed_for_nothing(look):
    found = look()
    assert (found.wrong, found.runs, found.steps) == ({}, 1, 3)


@pytest.mark.parametrize(("kind", "damage"), DAMAGES)
async def test_a_damage_is_seen(look, db, kind, damage):
    async with db.connection() as conn:
        await conn.execute(damage)
    assert kind in look().wrong


async def test_what_clients_know_is_compared(look, run_id):
    assert "wrong_steps" in look(Expected("thinker")).wrong
    assert "cancels_ignored" in look(Expected("sleeper", "cancelling")).wrong
    assert look(Expected("sleeper", "succeeded")).wrong == {}


async def test_a_second_line_is_a_doubled_effect(look, effects):
    effects.write_text(f"{LINE}\n{LINE}\n")
    assert "duplicated_effects" in look().wrong


async def test_a_run_that_nobody_asked_for_is_seen(look, play):
    other = await play.start()
    assert f"run_{other.hex}" in dict(look().wrong["unasked_runs"])


async def test_a_run_that_waits_for_a_person_is_parked_and_not_stuck(look, db, run_id):
    await sql(db, "UPDATE tool_calls SET status = 'unknown'")
    await sql(db, "UPDATE runs SET status = 'waiting_approval'")
    await sql(db, "DELETE FROM events WHERE type = 'run.completed'")
    await sql(db, "UPDATE runs SET next_seq = next_seq - 1")
    found = look()
    assert (found.wrong, found.parked) == ({}, [f"run_{run_id.hex}"])
