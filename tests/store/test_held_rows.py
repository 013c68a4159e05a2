"""A process that froze in the middle of a transaction holds rows: others wait a little, or go on
without them, and Postgres takes the rows from it before those who wait give up.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from harness_common.core.inputs import StepFailed
from harness_common.core.step import Failure
from harness_common.logins import derive
from harness_common.settings import DatabaseSettings
from harness_common.store.connection import DatabaseUnavailable, run_sql
from harness_common.store.db import Database
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.cron import CronLoop
from harness_worker.scheduler.release import ReleaseLoop
from harness_worker.scheduler.service import tick
from harness_worker.scheduler.wake import WakeLoop
from tests.store.play import WHEN, Play, make_tenant, make_worker, say, sql
from tests.store.test_scheduler import lead, make_due, once
from tests.store.test_schedules import later, make, outcomes
from tests.store.test_schedules import share as lead_schedules

PATIENT_S = 5.0
"""A duty that waited for the rows would take twice as long, and fail."""


@asynccontextmanager
async def frozen_start(play: Play) -> AsyncIterator[None]:
    """Be an API process that stands still after the first statement of a start."""
    async with play.db.transaction() as conn:
        await run_sql(conn, "slots_hold", {"tenant_id": play.tenant_id}, play.db.timeout_s)
        yield


async def two_tenants(db: Database) -> list[Play]:
    """Make two tenants; the first is the one that a round comes to first."""
    plays = [Play(db, await make_tenant(db)) for _ in range(2)]
    return sorted(plays, key=lambda p: p.tenant_id)


async def queued(play: Play) -> UUID:
    await sql(play.db, "UPDATE tenant_slots SET granted = 0 WHERE tenant_id = :t", t=play.tenant_id)
    return await play.start()


async def status(play: Play, run_id: UUID) -> str:
    return str((await play.read(run_id)).state.status)


async def test_a_start_that_froze_holds_up_no_other_tenants_admission(db):
    shared = await lead(db)
    await make_worker(db)
    held, other = await two_tenants(db)
    waits, goes = await queued(held), await queued(other)
    admit = AdmitLoop(shared)
    async with frozen_start(held):
        begun = time.monotonic()
        assert await once(admit, shared) == 1
        second = await queued(other)
        assert await once(admit, shared) == 1
        assert time.monotonic() - begun < PATIENT_S
        assert [await status(other, r) for r in (goes, second)] == ["running"] * 2
        assert await status(held, waits) == "queued"
    assert await once(admit, shared) == 1
    assert await status(held, waits) == "running"


async def test_a_start_that_froze_holds_up_no_other_tenants_timers(db):
    shared = await lead(db)
    held, other = await two_tenants(db)
    asleep = {}
    for play in (held, other):
        asleep[play.tenant_id] = await play.start()
        limited = StepFailed(Failure("limited", "L", "l", 60.0), WHEN)
        await play.step(asleep[play.tenant_id], limited)
    await make_due(db)
    wake = WakeLoop(shared)
    async with frozen_start(held):
        begun = time.monotonic()
        while await status(other, asleep[other.tenant_id]) == "delayed":
            await once(wake, shared)
        assert time.monotonic() - begun < PATIENT_S
        assert await status(held, asleep[held.tenant_id]) == "delayed"
    again = WakeLoop(shared)
    assert await once(again, shared) == 1
    assert await status(held, asleep[held.tenant_id]) != "delayed"


async def test_a_start_that_froze_holds_up_no_other_tenants_schedules(db):
    shared = await lead_schedules(db)
    held, other = await two_tenants(db)
    made = {}
    for play in (held, other):
        made[play.tenant_id] = await make(play)
        await later(play, made[play.tenant_id], minutes=40)
    cron = CronLoop(shared)
    async with frozen_start(held):
        begun = time.monotonic()
        while not await outcomes(other, made[other.tenant_id]):
            await once(cron, shared)
        assert time.monotonic() - begun < PATIENT_S
        assert await outcomes(held, made[held.tenant_id]) == []
    await once(CronLoop(shared), shared)
    assert await outcomes(held, made[held.tenant_id]) == ["started"]


async def test_a_duty_that_rows_are_held_from_costs_neither_the_others_nor_the_term(play, db):
    shared = await lead(db)
    await make_worker(db)
    first = await play.start()
    session = (await play.read(first)).session_id
    behind = await play.start(session_id=session, on_busy="enqueue")
    await play.step(first, say())
    waits = await queued(play)
    async with db.transaction() as conn:
        key = {"tenant_id": play.tenant_id, "run_id": behind}
        await run_sql(conn, "lock_run", key, db.timeout_s)
        await tick(shared, [ReleaseLoop(shared), AdmitLoop(shared)])
        assert await status(play, waits) == "running"


async def test_what_a_frozen_process_holds_is_taken_from_it_before_the_others_give_up(
    play, db, database_url
):
    hasty = DatabaseSettings(timeout_s=2.0)
    key = {"tenant_id": play.tenant_id}
    url = derive(database_url, "system")

    async def stand_still() -> None:
        async with frozen.transaction() as conn:
            await run_sql(conn, "slots_hold", key, 2.0)
            assert await waiting.fetch("slots_hold", key) == [{"held": 1}]
            await run_sql(conn, "slots_hold", key, 2.0)

    async with Database(url, hasty) as frozen, Database(url, hasty) as waiting:
        await frozen.ready()
        with pytest.raises(DatabaseUnavailable):
            await stand_still()
