"""Starts of a tenant that come together: one transaction, each with its own outcome; and a burst of
them leaves the other tenants their connections.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import psycopg
import pytest

from harness_common.commands import StartRun, start_run
from harness_common.commands.begin import reserve_keys
from harness_common.core.errors import NotFound
from harness_common.core.run import TERMINAL, Status
from harness_common.logins import derive
from harness_common.settings import DatabaseSettings
from harness_common.store.connection import DatabaseUnavailable, RowsHeld
from harness_common.store.db import Database
from harness_common.telemetry.causes import CAUSE, Cause
from tests.store.play import Play, make_tenant, sql

pytestmark = pytest.mark.anyio
HOLD = "SELECT 1 FROM tenant_slots WHERE tenant_id = %s FOR UPDATE"


def few(database_url, timeout_s: float = 10.0) -> Database:
    config = DatabaseSettings(pool_max=2, timeout_s=timeout_s)
    return Database(derive(database_url, "api"), config)


async def test_other_tenants_start_while_one_has_to_wait(play, db, database_url):
    await play.start()  # each tenant has its agent
    other = Play(db, await make_tenant(db))
    async with few(database_url) as api:
        with psycopg.connect(database_url) as holder:
            holder.execute(HOLD, (play.tenant_id,))
            burst = [
                asyncio.create_task(start_run(api, play.tenant_id, StartRun("a", "hi")))
                for _ in range(8)
            ]
            await asyncio.sleep(0.3)
            async with asyncio.timeout(3):
                await start_run(api, other.tenant_id, StartRun("a", "hi"))
            assert not any(one.done() for one in burst)
        started = await asyncio.gather(*burst)
    assert len({one.run_id for one in started}) == 8
    assert not any(one.status in TERMINAL for one in started)


async def test_who_waits_too_long_is_told_and_the_next_one_can_start(play, db, database_url):
    async with few(database_url, timeout_s=1.0) as api:
        with psycopg.connect(database_url) as holder:
            holder.execute(HOLD, (play.tenant_id,))
            first = asyncio.create_task(start_run(api, play.tenant_id, StartRun("a", "hi")))
            await asyncio.sleep(0)  # its transaction is under way before the others come
            rest = [start_run(api, play.tenant_id, StartRun("a", "hi")) for _ in range(2)]
            ends = await asyncio.gather(first, *rest, return_exceptions=True)
        assert isinstance(ends[0], DatabaseUnavailable)
        assert all(isinstance(end, RowsHeld) for end in ends[1:])
        run_id = (await start_run(api, play.tenant_id, StartRun("a", "hi"))).run_id
    assert [row["id"] for row in await sql(db, "SELECT id FROM runs")] == [run_id]


class Counted(Database):
    """Counts transactions of tenants; with `lost` the replies to their commits do not arrive."""

    opened = 0
    lost = False

    @asynccontextmanager
    async def tenant_transaction(self, tenant_id: UUID, wait_s: float | None = None):
        self.opened += 1
        async with super().tenant_transaction(tenant_id, wait_s) as conn:
            yield conn
        if self.lost:
            raise DatabaseUnavailable("the connection broke")


@pytest.fixture
async def counted(database_url):
    async with Counted(derive(database_url, "api"), DatabaseSettings(pool_max=2)) as opened:
        yield opened


async def burst(counted, play, requests) -> list[Any]:
    """Ask for a run, and while that is under way for those of `requests`."""
    first = asyncio.create_task(start_run(counted, play.tenant_id, StartRun("a", "first")))
    await asyncio.sleep(0)
    rest = [start_run(counted, play.tenant_id, one) for one in requests]
    made = await asyncio.gather(first, *rest, return_exceptions=True)
    return made[1:]


async def inputs(db) -> list[str]:
    rows = await sql(db, "SELECT input FROM runs WHERE input <> 'first' ORDER BY id")
    return [row["input"] for row in rows]


async def test_what_comes_while_a_start_is_under_way_goes_in_one_transaction(db, counted):
    """Each sees the slots that those before it took, and they keep the order they came in."""
    play = Play(db, await make_tenant(db, max_running=50, granted=4))
    asked = [StartRun("a", f"{n:02}", tags={"n": str(n)}) for n in range(9)]
    made = await burst(counted, play, asked)
    assert counted.opened == 2
    assert [one.status for one in made] == [Status.RUNNING] * 3 + [Status.QUEUED] * 6
    assert [one.doorbell is not None for one in made] == [True] * 3 + [False] * 6
    assert [(await play.read(one.run_id)).state.status for one in made] == [m.status for m in made]
    assert len({one.session_id for one in made}) == 9
    assert await inputs(db) == [one.input for one in asked]
    assert await play.running() == 4
    for one in made[:2]:
        assert [e["type"] for e in await play.events(one.run_id)] == ["run.created", "run.started"]
    (slots,) = await sql(
        db,
        "SELECT abs(turn_sum - (SELECT sum(extract(epoch FROM turn_at)) FROM runs)) < 0.01 AS same "
        "FROM tenant_slots WHERE tenant_id = :t",
        t=play.tenant_id,
    )
    assert slots["same"], "slot-seconds are counted from when each began"


async def test_so_many_go_in_one_transaction_at_most(play, counted):
    made = await burst(counted, play, [StartRun("a", "hi")] * 40)
    assert counted.opened == 4  # 1, 16, 16, 8
    assert len({one.run_id for one in made}) == 40


async def test_one_that_is_refused_keeps_nobody_else_from_starting(play, db, counted):
    asked = [StartRun("a", "one"), StartRun("nobody", "two"), StartRun("a", "three")]
    made = await burst(counted, play, asked)
    assert isinstance(made[1], NotFound)
    assert counted.opened == 2
    assert await inputs(db) == ["one", "three"]


async def test_one_that_cannot_be_written_fails_alone(play, db, counted):
    """A transaction that fails as a whole has done nothing: each of its starts is tried alone."""
    asked = [StartRun("a", "one"), StartRun("a", "two", priority=10**6), StartRun("a", "three")]
    made = await burst(counted, play, asked)
    assert isinstance(made[1], psycopg.errors.DataError)
    assert await inputs(db) == ["one", "three"]
    assert await play.running() == 3


async def test_when_the_reply_to_the_commit_is_lost_nothing_is_started_again(play, db, counted):
    counted.lost = True
    made = await burst(counted, play, [StartRun("a", f"{n}") for n in range(4)])
    assert all(isinstance(one, DatabaseUnavailable) for one in made)
    assert await inputs(db) == ["0", "1", "2", "3"]


async def test_runs_of_one_session_follow_each_other_in_the_order_they_came(play, db, counted):
    session_id = (await play.read(await play.start("first"))).session_id
    asked = [
        StartRun("a", f"{n}", session_id=session_id, on_busy="enqueue") if n % 2 else
        StartRun("a", f"{n}")
        for n in range(7)
    ]  # fmt: skip
    made = await burst(counted, play, asked)
    line = [await play.read(one.run_id) for one in made if one.session_id == session_id]
    assert [run.prev_run_id for run in line[1:]] == [run.id for run in line[:-1]]
    assert [row["input"] for row in await sql(
        db, "SELECT input FROM runs WHERE session_id = :s AND input <> 'first' ORDER BY id",
        s=session_id,
    )] == ["1", "3", "5"]  # fmt: skip


async def test_a_start_that_nobody_waits_for_any_more_is_not_begun(play, db, counted):
    first = asyncio.create_task(start_run(counted, play.tenant_id, StartRun("a", "first")))
    await asyncio.sleep(0)
    rest = [
        asyncio.create_task(start_run(counted, play.tenant_id, StartRun("a", f"{n}")))
        for n in range(3)
    ]
    await asyncio.sleep(0)
    rest[1].cancel()
    await asyncio.wait([first, *rest])
    assert await inputs(db) == ["0", "2"]


async def test_each_start_is_told_to_whoever_caused_it(play, counted):
    async def caused() -> tuple[UUID, list[UUID]]:
        cause = Cause(0)
        CAUSE.set(cause)
        made = await start_run(counted, play.tenant_id, StartRun("a", "hi"))
        return made.run_id, [one.run_id for one in cause.made]

    told = await asyncio.gather(*(asyncio.create_task(caused()) for _ in range(5)))
    assert all(made == [run_id] for run_id, made in told)


async def test_a_key_that_steering_took_meanwhile_makes_no_run(play, db, counted, monkeypatch):
    """Who steers does not hold the slots: its key may come after a start has looked for it."""
    running = await play.start("first")
    key: dict[str, Any] = {"idempotency_key": "k", "body_digest": "d"}
    session_id = (await play.read(running)).session_id
    steering = StartRun("a", "steer", session_id=session_id, on_busy="steer", **key)

    async def late(*args):
        if args[3]:
            await start_run(db, play.tenant_id, steering)
        return await reserve_keys(*args)

    monkeypatch.setattr("harness_common.commands.accept.reserve_keys", late)
    started = await start_run(counted, play.tenant_id, StartRun("a", "steer", **key))
    assert (started.replayed, started.run_id) == (True, running)
    assert await inputs(db) == []
