"""INV3: whenever a worker is killed, a write happens at most once for each time it was authorised,
everything else is completed, and `unknown` is only what nobody can know.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import sys

import pytest

from tests.kill.points import Point
from tests.kill.scenario import CLASSES, Tally, Workers, check_effects, draw
from tests.store.play import sql
from tests.worker.tool_steps import allow_tools

NAMES = (*CLASSES, "companion")


async def run_all(play, database_url, tmp_path, kills):
    seed = int(os.environ.get("KILL_SEED", secrets.randbelow(10**6)))
    sys.stdout.write(f"KILL_SEED={seed}\n")
    tally, effects = Tally(), tmp_path / "effects.txt"
    await allow_tools(play.db, NAMES)
    await sql(play.db, "UPDATE tenant_slots SET max_running = 10000, granted = 10000")
    scenarios = draw(seed, kills)
    async with Workers(database_url, effects) as one, Workers(database_url, effects) as two:

        async def go_through(workers):
            while scenarios:
                await scenarios.pop(0).play(play, workers, tally)

        await asyncio.gather(go_through(one), go_through(two))
    rows = await sql(play.db, "SELECT * FROM tool_calls WHERE name <> 'companion'")
    tally.effects = await check_effects(play, effects, rows)
    sys.stdout.write(tally.told(len(rows)))
    assert {k for k, n in tally.kills.items() if n} == {(e, p) for e in CLASSES for p in Point}
    assert tally.unknown
    return tally


@pytest.mark.timeout(300)
async def test_a_hundred_kills(play, database_url, tmp_path):
    tally = await run_all(play, database_url, tmp_path, 90)
    assert sum(tally.kills.values()) >= 90


@pytest.mark.nightly
@pytest.mark.timeout(1800)
async def test_five_hundred_kills(play, database_url, tmp_path):
    tally = await run_all(play, database_url, tmp_path, 500)
    assert sum(tally.kills.values()) >= 500
