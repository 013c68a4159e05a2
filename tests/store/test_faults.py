"""A database that is cut off, goes silent or forgets to answer: nothing hangs, nothing is lost,
nothing is done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from harness_common.commands import StartRun, cancel_run, start_run
from harness_common.core.errors import LostOwnership
from harness_common.core.inputs import OwnerLost
from harness_common.core.run import Status
from harness_common.settings import DatabaseSettings
from harness_common.store.apply import lock_run
from harness_common.store.connection import DatabaseUnavailable
from harness_common.store.db import Database
from harness_common.store.postgres import pg
from harness_common.store.writes import NextClaim
from tests.fakes.cut_proxy import CutProxy
from tests.store.play import ran, say, sql

TIMEOUT_S = 1.0


@pytest.fixture
async def proxy(database_url) -> AsyncIterator[CutProxy]:
    parts = urlsplit(database_url)
    async with CutProxy(parts.hostname, parts.port) as opened:
        yield opened


@asynccontextmanager
async def through(proxy: CutProxy, database_url: str) -> AsyncIterator[Database]:
    """Open the database through the proxy."""
    parts = urlsplit(database_url)
    config = DatabaseSettings(timeout_s=TIMEOUT_S, pool_min=1, pool_max=2, connect_timeout_s=2)
    login = f"{parts.username}:{parts.password}"
    async with Database(f"postgresql://{login}@127.0.0.1:{proxy.port}{parts.path}", config) as far:
        await far.ready()
        yield far


@pytest.fixture
async def far(proxy, database_url) -> AsyncIterator[Database]:
    async with through(proxy, database_url) as opened:
        yield opened


def on_commit(proxy: CutProxy, act) -> None:
    """Call `act` once, when the first commit of a transition passes by (before it is forwarded)."""

    def look(data: bytes) -> None:
        if b'"seen_fence"' in data:
            proxy.on_request = None
            act()

    proxy.on_request = look


def heal(proxy: CutProxy) -> None:
    proxy.mode = "pass"
    proxy.rst()


async def until_step(play, run_id, step):
    """Wait until the commit has arrived, whatever its client knows."""
    while (await play.read(run_id)).state.step < step:
        await sql(play.db, "SELECT 1")


@pytest.mark.parametrize("keep", [False, True], ids=["", "inline"])
async def test_a_commit_whose_reply_is_lost_is_read_back(play, proxy, far, keep):
    """INV10, INV2: the row tells that it arrived; the step is there once."""
    run_id = await play.start()
    run = await play.claim(run_id)
    going_on = NextClaim(uuid4(), play.worker, 900) if keep else None
    on_commit(proxy, lambda: setattr(proxy, "mode", "drop_replies"))
    settling = asyncio.create_task(
        play.settle(run, say("x", tools=["look"]), keep=going_on, db=far)
    )
    await until_step(play, run_id, 1)
    heal(proxy)
    applied = await settling
    assert applied.run.state.step == 1
    assert applied.run.claim_id == (going_on.claim_id if going_on else None)
    assert applied.should_ring is not keep
    if going_on:
        await play.settle(applied.run, ran("y"))
    await play.check_whole(run_id)


async def test_a_commit_that_never_arrived_is_sent_again(play, proxy, far):
    """INV10, INV1."""
    run_id = await play.start()
    run = await play.claim(run_id)

    def swallow() -> None:
        proxy.mode = "blackhole"
        asyncio.get_running_loop().call_later(0.05, heal, proxy)

    on_commit(proxy, swallow)
    applied = await play.settle(run, say("x"), db=far)
    assert applied.run.state.status is Status.SUCCEEDED
    assert applied.first_seq > 0, "it was written by the second try"
    await play.check_whole(run_id)


async def test_a_lost_reply_and_a_cancel_in_between(play, proxy, far):
    """INV10, INV20: the run went on (to its end) since our commit; we leave it, and the step is
    there.
    """
    run_id = await play.start()
    run = await play.claim(run_id)
    on_commit(proxy, lambda: setattr(proxy, "mode", "drop_replies"))
    settling = asyncio.create_task(play.settle(run, say("x", tools=["look"]), db=far))
    await until_step(play, run_id, 1)
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    heal(proxy)
    with pytest.raises(LostOwnership):
        await settling
    end = await play.read(run_id)
    assert (end.state.status, end.state.step) == (Status.CANCELLED, 1)
    await play.check_whole(run_id)


async def test_a_lost_reply_gives_nobody_elses_claim(play, proxy, far):
    """INV6: our commit went on inline and its reply was lost; meanwhile we were declared dead and
    another worker claimed.

    The read-back may say that the commit arrived, but must never hand out the other worker's claim.
    """
    run_id = await play.start()
    run = await play.claim(run_id)
    keep = NextClaim(uuid4(), play.worker, 900)
    on_commit(proxy, lambda: setattr(proxy, "mode", "drop_replies"))
    settling = asyncio.create_task(play.settle(run, say("x", tools=["look"]), keep=keep, db=far))
    await until_step(play, run_id, 1)
    assert await play.apply(await play.read(run_id), OwnerLost("w", "silent")) is not None
    other = await play.claim(run_id, uuid4())
    heal(proxy)
    try:
        applied = await settling
    except LostOwnership:
        return
    assert applied.run.claim_id != other.claim_id


async def test_a_reset_connection_is_reported_and_replaced(far, proxy):
    await far.fetch("workers_alive", {})
    proxy.rst()
    with pytest.raises(DatabaseUnavailable):
        await far.fetch("workers_alive", {})
    assert await far.fetch("workers_alive", {}) == []


async def timed(work) -> float:
    begun = asyncio.get_running_loop().time()
    with pytest.raises(DatabaseUnavailable):
        await work
    return asyncio.get_running_loop().time() - begun


async def in_transaction(far: Database) -> None:
    async with far.transaction() as conn:
        await pg(conn).execute("SELECT 1")


@pytest.mark.parametrize("kind", ["fetch", "transaction", "tenant transaction", "commit"])
async def test_a_black_hole_hangs_nothing_and_the_pool_recovers(play, far, proxy, kind):
    """INV11: every way to the database gives up within its time, also BEGIN and COMMIT."""
    await far.fetch("workers_alive", {})

    async def begin_and_lose_the_rest() -> None:
        async with far.transaction():
            proxy.mode = "blackhole"

    if kind != "commit":
        proxy.mode = "blackhole"
    work = {
        "fetch": lambda: far.fetch("workers_alive", {}),
        "transaction": lambda: in_transaction(far),
        "tenant transaction": lambda: start_run(far, play.tenant_id, StartRun("a", "x")),
        "commit": begin_and_lose_the_rest,
    }[kind]()
    async with asyncio.timeout(20):
        took_s = await timed(work)
    assert took_s < 2 * TIMEOUT_S + 1
    proxy.mode = "pass"
    async with asyncio.timeout(20):
        while True:
            try:
                assert await far.fetch("workers_alive", {}) == []
                break
            except DatabaseUnavailable:
                continue


async def test_settle_gives_up_after_its_patience(play, far, proxy):
    """INV11: and whether the step was written is for the next claim to see."""
    run_id = await play.start()
    run = await play.claim(run_id)
    on_commit(proxy, lambda: setattr(proxy, "mode", "blackhole"))
    async with asyncio.timeout(30):
        await timed(play.settle(run, say("x"), db=far, patience_s=0.5))
    assert (await play.read(run_id)).claim_id == run.claim_id
    await play.settle(run, say("x"))
    await play.check_whole(run_id)


async def test_one_round_trip_per_commit(play, far, proxy):
    """A step's commit is one request and one answer."""
    run_id = await play.start()
    for n in range(4):  # once plain, once to prepare it
        result = ran("y") if n % 2 else say("x", tools=["look"])
        await play.settle(await play.claim(run_id), result, db=far)
    run = await play.claim(run_id)
    requests: list[bytes] = []
    proxy.on_request = requests.append
    await play.settle(run, say("x", tools=["look"]), db=far)
    assert len(requests) == 1


async def test_a_statement_that_waits_for_a_lock_is_bounded(play, far):
    """INV11: the server's own limit and ours, whichever comes first."""
    run_id = await play.start()
    async with play.db.transaction() as conn:
        await lock_run(conn, play.tenant_id, run_id, 5)
        assert await timed(cancel_run(far, play.tenant_id, run_id, by="ann")) < 3 * TIMEOUT_S
    assert (await sql(play.db, "SELECT count(*) AS n FROM inputs")) == [{"n": 0}]
