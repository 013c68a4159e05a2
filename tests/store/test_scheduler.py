"""The scheduler's loops, called one by one: nothing here sleeps, rings a real bell or needs a
Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
from redis.exceptions import ConnectionError as RedisDown

from harness_common.broker.publish import Doorbell
from harness_common.commands import Parent
from harness_common.coord.lease import Leases
from harness_common.core.errors import Conflict
from harness_common.core.inputs import StepFailed
from harness_common.core.rules import SUSPECT_DEATHS
from harness_common.core.run import Status
from harness_common.core.step import Failure
from harness_common.settings import DatabaseSettings, SchedulerSettings, Settings
from harness_common.store.db import Database
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.cancel import CancelLoop
from harness_worker.scheduler.dispatch import DispatchLoop
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.reap import BATCH, ReapLoop
from harness_worker.scheduler.service import Scheduler, look_once, tick
from harness_worker.scheduler.wake import WakeLoop
from tests.fakes.cut_proxy import CutProxy
from tests.store.play import WHEN, Play, make_tenant, make_worker, say, sql, waiting_until


class FakeBell:
    """Keeps what was rung."""

    works = True
    renewed = 0

    def __init__(self) -> None:
        self.rung: list[Doorbell] = []

    def ring(self, bell: Doorbell) -> None:
        self.rung.append(bell)

    def taken(self) -> list[UUID]:
        rung, self.rung = [b.run_id for b in self.rung], []
        return rung


class FakeRedis:
    """Cannot say who is connected: the reaper then judges by heartbeats alone."""

    async def info(self, section: str) -> dict[str, Any]:
        raise RedisDown(section)

    async def client_list(self) -> list[dict[str, Any]]:
        raise RedisDown("down")

    async def set(self, name: str, value: str, *, nx: bool) -> bool:
        del name, value
        return not nx  # the scheduler's marker is there: the broker forgot nothing


class FakeLeases:
    """Keeps whose leases were broken."""

    def __init__(self) -> None:
        self.broken: list[tuple[UUID, UUID]] = []

    async def holders(self, run_ids: list[UUID]) -> dict[UUID, UUID]:
        del run_ids
        return {}

    async def break_lease(self, run_id: UUID, worker: UUID) -> None:
        self.broken.append((run_id, worker))


async def lead(db: Database, *, limit: int = 1000, ttl_s: float = 60.0) -> Any:
    """Become leader and return what its loops share."""
    term = await Leadership(db, uuid4(), "test", ttl_s).seek()
    assert term is not None
    return share(db, term, limit)


def share(db: Database, term: int, limit: int = 1000) -> Any:
    config = Settings(scheduler=SchedulerSettings(max_running=limit))
    redis: Any = FakeRedis()
    leases: Any = FakeLeases()
    bell: Any = FakeBell()
    return Shared(config, db, redis, leases, bell, term)


@pytest.fixture
async def shared(db) -> Any:
    return await lead(db)


async def once(loop: Any, shared: Shared) -> int:
    return int(await loop.run_once(await look_once(shared)))


async def make_due(db: Database) -> None:
    await sql(
        db,
        "UPDATE runs SET wake_at = clock_timestamp() - interval '1 ms', not_before = CASE "
        "WHEN not_before IS NOT NULL THEN clock_timestamp() - interval '1 ms' END "
        "WHERE wake_at IS NOT NULL",
    )


# ── dispatch ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_lost_doorbell_is_rung_again_with_growing_patience(play, shared):
    run_id = await play.start()
    dispatch, waits = DispatchLoop(shared), []
    assert await once(dispatch, shared) == 0, "it is not due yet"
    for ring in range(2, 8):
        await make_due(play.db)
        assert await once(dispatch, shared) == 1
        (bell,) = shared.bell.rung
        assert (bell.run_id, bell.version, bell.ring) == (run_id, 1, ring)
        shared.bell.taken()
        assert await once(dispatch, shared) == 0
        (row,) = await sql(
            play.db, "SELECT extract(epoch FROM wake_at - clock_timestamp())::float8 AS s FROM runs"
        )
        waits.append(round(row["s"]))
    assert waits == [10, 20, 40, 60, 60, 60]
    assert await play.try_claim(run_id, 1), "the first doorbell that comes is good"


async def test_nothing_is_rung_that_is_owned_waits_or_has_ended(play, shared):
    owned, delayed, ended = [await play.start() for _ in range(3)]
    await play.claim(owned)
    await play.step(delayed, StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
    await play.step(ended, say())
    await make_due(play.db)
    assert await once(DispatchLoop(shared), shared) == 0
    assert shared.bell.rung == []


async def test_a_lease_of_a_dead_process_turns_nobody_away(play, shared, redis):
    """It died between its commit and the release, or before it claimed: no claim names it."""
    leases = shared.leases = Leases(redis, "test", 60.0)
    run_id, others = await play.start(), await play.start()
    dead, alive = await make_worker(play.db), await make_worker(play.db)
    assert await leases.take(run_id, f"{dead.hex}:{uuid4().hex}")
    assert await leases.take(others, f"{alive.hex}:{uuid4().hex}")
    await sql(
        play.db, "UPDATE workers SET died_at = clock_timestamp() WHERE incarnation = :w", w=dead
    )
    await make_due(play.db)
    assert await once(DispatchLoop(shared), shared) == 2
    assert await leases.take(run_id, f"{alive.hex}:{uuid4().hex}")
    assert not await leases.take(others, f"{dead.hex}:{uuid4().hex}"), "that of a live one stays"


# ── wake ─────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delayed_run_wakes_when_its_time_has_come_and_not_before(play, shared):
    """INV14."""
    run_id = await play.start()
    await play.step(run_id, StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
    wake = WakeLoop(shared)
    assert await once(wake, shared) == 0
    assert await play.running() == 0
    await make_due(play.db)
    assert await once(wake, shared) == 1
    run = await play.read(run_id)
    assert (run.state.status, run.version) == (Status.RUNNING, 3), (
        "woken and admitted in one commit"
    )
    assert shared.bell.taken() == [run_id]
    assert await play.running() == 1
    await play.check_whole(run_id)


async def test_a_wall_clock_runs_out_also_while_no_worker_comes(play, shared):
    """Runs are let in before the first worker is there, and a queue may lose its last one."""
    alone, worked_on = [await play.start(timeout_s=60.0) for _ in range(2)]
    await play.claim(worked_on)
    wake = WakeLoop(shared)
    await make_due(play.db)
    assert await once(wake, shared) == 0, "it has time left"
    await sql(
        play.db,
        "UPDATE runs SET limits = jsonb_set(limits, '{deadline}', "
        "to_jsonb(clock_timestamp() - interval '1 ms'))",
    )
    assert await once(wake, shared) == 1
    state = (await play.read(alone)).state
    assert (state.status, state.stop_reason) == (Status.FAILED, "deadline_exceeded")
    assert (await play.read(worked_on)).state.status is Status.RUNNING, "its owner ends it"
    assert await play.running() == 1
    await play.check_whole(alone)


async def test_a_woken_run_queues_when_there_is_no_room(db):
    """INV13: waking is admission."""
    play, shared = Play(db, await make_tenant(db, granted=1)), await lead(db)
    first = await play.start()
    await play.step(first, say(tools=["wait"]))
    await play.settle(await play.claim(first), waiting_until(WHEN))
    second = await play.start()
    assert await once(WakeLoop(shared), shared) == 1
    assert (await play.read(first)).state.status is Status.QUEUED
    assert shared.bell.rung == []
    assert await play.running() == 1
    await play.step(second, say())
    assert await once(AdmitLoop(shared), shared) == 1
    assert shared.bell.taken() == [first]


async def test_waking_many_whose_times_come_while_the_loop_looks(play, db, database_url):
    """The pick and the rule must judge by one clock: a run due a millisecond after the first look
    is not an error.
    """
    for n in range(30):
        run_id = await play.start()
        failure = Failure("limited", "L", "l", 0.2 + n / 30)
        await play.step(run_id, StepFailed(failure, WHEN, 0.0))
    leader = await lead(db)
    parts = urlsplit(database_url)
    async with CutProxy(parts.hostname, parts.port) as proxy:
        proxy.latency_s = 0.005
        url = f"postgresql://{parts.username}:{parts.password}@127.0.0.1:{proxy.port}{parts.path}"
        async with Database(url, DatabaseSettings(pool_max=2)) as slow:
            await slow.ready()
            shared = share(slow, leader.term)
            wake, woken = WakeLoop(shared), 0
            async with asyncio.timeout(20):
                while woken < 30:
                    woken += await once(wake, shared)
    assert await play.running() == 30


@pytest.mark.parametrize("kind", ["wake", "cancel"])
async def test_a_loop_stops_in_time_for_the_leader_to_renew_its_term(db, kind):
    """With slow commits two hundred tenants, or children, take longer than a term lasts."""
    shared = await lead(db)
    shared.settings = Settings(scheduler=SchedulerSettings(leader_ttl_s=1e-6))
    loop: Any = WakeLoop(shared) if kind == "wake" else CancelLoop(shared)
    for _ in range(3):
        play = Play(db, await make_tenant(db))
        run_id = await play.start()
        if kind == "wake":
            await play.step(run_id, StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
        else:
            await play.start(parent=Parent(run_id, 1, 0, 1))
            await play.step(run_id, say())
    await make_due(db)
    assert [await once(loop, shared) for _ in range(4)] == [1, 1, 1, 0]


# ── reap ─────────────────────────────────────────────────────────────────────────────────────────


async def reaper(shared: Shared) -> ReapLoop:
    """Return a reaper that has watched Postgres for a whole lease."""
    loop, look = ReapLoop(shared), await look_once(shared)
    lease = timedelta(seconds=shared.settings.worker.lease_s)
    for quarter in (4, 3, 2, 1):
        loop.watch(replace(look, now=look.now - lease * quarter / 4))
    return loop


async def test_a_postgres_outage_condemns_nobody(play, db, shared):
    """INV20: after a gap in its own looks the reaper watches a lease before it judges silence."""
    run_id = await play.start()
    await play.claim(run_id, await make_worker(db, silent_s=60))
    loop, look = ReapLoop(shared), await look_once(shared)
    assert await loop.run_once(look) == 0
    assert await loop.run_once(replace(look, now=look.now + timedelta(hours=1))) == 0


async def test_the_runs_of_a_silent_worker_are_given_back_at_once(play, db, shared):
    """INV8, INV6, INV2."""
    dead, alive = await make_worker(db, silent_s=60), await make_worker(db)
    lost, kept = await play.start(), await play.start()
    stale = await play.claim(lost, dead)
    await play.claim(kept, alive)
    assert await once(await reaper(shared), shared) == 2
    run = await play.read(lost)
    assert (run.claim_id, run.state.deaths, run.version, run.state.status) == (
        None,
        1,
        1,
        "running",
    )
    assert shared.bell.taken() == [lost]
    assert shared.leases.broken == [(lost, dead)]
    assert (await play.read(kept)).claimed_by == alive
    with pytest.raises(Conflict):
        await play.settle(stale, say("late"))
    await play.step(lost, say("again"))
    assert await once(await reaper(shared), shared) == 0
    await play.check_whole(lost)


class OddRedis(FakeRedis):
    """Has a connection whose name looks nearly like a worker's."""

    async def info(self, section: str) -> dict[str, Any]:
        return {"run_id": section}

    async def client_list(self) -> list[dict[str, Any]]:
        return [{"name": "harness-worker-debug"}, {"name": ""}, {}]


async def test_a_connection_of_an_odd_name_stops_no_recovery(play, db, shared):
    """Whoever names a connection so would keep every run of the dead."""
    worker = await make_worker(db)
    run_id = await play.start()
    await play.claim(run_id, worker)
    await sql(db, "UPDATE workers SET died_at = clock_timestamp()")
    odd: Any = OddRedis()
    shared.redis = odd
    assert await once(ReapLoop(shared), shared) == 1
    assert (await play.read(run_id)).claim_id is None


async def test_a_slow_step_is_no_death(play, db, shared):
    """Death is judged by liveness, never by the age of a step."""
    alive = await make_worker(db)
    run_id = await play.start()
    run = await play.claim(run_id, alive)
    await make_due(db)
    assert await once(await reaper(shared), shared) == 0
    assert (await play.read(run_id)).claim_id == run.claim_id
    assert ((await look_once(shared)).due_in_s or 0) > 1, "looked at again later"
    assert await once(DispatchLoop(shared), shared) == 0


async def test_doorbells_that_a_dead_worker_may_have_swallowed_are_rung_again(play, db, shared):
    await make_worker(db, silent_s=60)
    run_id = await play.start()
    await once(await reaper(shared), shared)
    assert await once(DispatchLoop(shared), shared) == 1
    assert shared.bell.taken() == [run_id]


@pytest.mark.parametrize("name", ["worker_died", "ring_all"])
async def test_a_death_and_a_forgetful_broker_wait_for_no_claim(play, db, shared, name):
    """INV8: waiting for a batch of claims that waited for them was a deadlock, and the report of a
    death its victim.
    """
    held, free = await play.start(), await play.start()
    params = {"worker": await make_worker(db), "why": "killed", "only_if_silent": False}
    params |= {"looked_at": None, "silent_s": 0.0, "term": shared.term}
    await sql(db, "UPDATE runs SET wake_at = clock_timestamp() + interval '1 hour', rings = 3")
    lock = "SELECT id FROM runs WHERE id = %s FOR UPDATE"
    async with db.transaction() as claiming:
        await claiming.execute(lock, (held,))
        async with asyncio.timeout(5):
            await db.fetch(name, params)
        due = await sql(db, "SELECT id FROM runs WHERE wake_at <= clock_timestamp()")
    assert [row["id"] for row in due] == [free]


async def test_a_claim_after_the_verdict_is_no_second_death(play, db, shared):
    """A process that was cut off and taken for dead claims again before its heartbeat has told it:
    one cut must not count as two deaths, which would put its run aside.
    """
    run_id = await play.start()
    worker = await make_worker(db, silent_s=60)
    await play.claim(run_id, worker)
    await once(await reaper(shared), shared)
    await play.claim(run_id, worker)
    await once(await reaper(shared), shared)
    run = await play.read(run_id)
    assert (run.claim_id, run.state.deaths) == (None, 1)


async def test_poison_is_put_aside(play, db, shared):
    """INV15: deaths in company make a run a suspect, which rings where it runs alone; its death
    there is its own.
    """
    run_id = await play.start()
    for deaths in range(1, SUSPECT_DEATHS + 1):
        await play.claim(run_id, await make_worker(db, silent_s=60))
        await once(await reaper(shared), shared)
        run = await play.read(run_id)
        assert (run.state.status, run.state.deaths) == (Status.RUNNING, deaths)
        rung = shared.bell.rung[-1]
        suspect = deaths >= SUSPECT_DEATHS
        assert rung.queue == ("steps.default.quarantine" if suspect else "steps.default")
    # An older doorbell of it may still lie in the ordinary queue; its version has not moved.
    version = (await play.read(run_id)).version
    old = await play.try_claim(run_id, version, await make_worker(db))
    assert old is None, "a process that holds other runs must not take a suspect"
    await play.claim(run_id, await make_worker(db, silent_s=60, concurrency=1))
    await once(await reaper(shared), shared)
    run = await play.read(run_id)
    assert (run.state.status, run.state.stop_reason) == (Status.FAILED, "poisoned")
    assert await play.running() == 0
    await play.check_whole(run_id)


async def suspects(play: Play, count: int) -> list[UUID]:
    """Start runs whose processes died twice."""
    runs = [await play.start() for _ in range(count)]
    await sql(play.db, "UPDATE runs SET deaths = 2")
    return runs


async def test_a_death_with_two_claims_is_nobodys_own(play, db, shared):
    """A claim whose reply got lost is held by a process that works on another run: which of the two
    killed it cannot be said.
    """
    worker = await make_worker(db, silent_s=60, concurrency=1)
    runs = await suspects(play, 2)
    for run_id in runs:
        await play.claim(run_id, worker)
    await once(await reaper(shared), shared)
    states = [(await play.read(run_id)).state for run_id in runs]
    assert [(s.status, s.deaths) for s in states] == [(Status.RUNNING, 3)] * 2


async def test_a_kill_while_stopping_is_not_the_runs_own(play, db, shared):
    worker = await make_worker(db, silent_s=60, concurrency=1)
    (run_id,) = await suspects(play, 1)
    await play.claim(run_id, worker)
    await db.fetch("worker_stopping", {"worker": worker})
    await once(await reaper(shared), shared)
    state = (await play.read(run_id)).state
    assert (state.status, state.deaths) == (Status.RUNNING, 3)


async def test_a_supervisor_sees_the_suspects_of_its_queues_that_nobody_serves(play, db):
    mine = await make_worker(db, queue="steps.default.quarantine", concurrency=1)
    await sql(db, "UPDATE workers SET died_at = clock_timestamp()")

    async def look(queue: str = "steps.default") -> tuple[int, int, bool]:
        row = await db.fetch_one("suspects", {"queues": [queue], "worker": mine, "soon_s": 70.0})
        assert row is not None
        return row["waiting"], row["unserved"], row["holds"]

    await play.start()
    assert await look() == (0, 0, False), "an ordinary run is no suspect"
    first, second = await suspects(play, 2)
    await sql(db, "UPDATE runs SET deaths = 1 WHERE id NOT IN (:a, :b)", a=first, b=second)
    assert await look() == (2, 2, False)
    assert await look("steps.other") == (0, 0, False)
    await make_worker(db, queue="steps.default.quarantine", concurrency=200)
    await make_worker(db, queue="steps.default", concurrency=1)
    assert await look() == (2, 2, False), "neither of them holds suspects alone"
    await play.claim(first, mine)
    assert await look() == (1, 1, True)
    await make_worker(db, queue="steps.default.quarantine", concurrency=1)
    assert await look() == (1, 0, True)


@pytest.mark.parametrize("leaves", [False, True], ids=["died", "left"])
async def test_the_end_of_a_quarantine_process_rings_its_suspects_again(play, db, shared, leaves):
    """A doorbell that it had in hand is rung again at once; those of other queues are not."""
    suspect, other = await play.start(), await play.start()
    await sql(db, "UPDATE runs SET deaths = 2 WHERE id = :r", r=suspect)
    worker = await make_worker(db, queue="steps.default.quarantine", silent_s=60, concurrency=1)
    if leaves:
        await db.fetch("worker_leave", {"worker": worker})
    else:
        await once(await reaper(shared), shared)
    due = await sql(db, "SELECT id FROM runs WHERE wake_at <= clock_timestamp()")
    assert [row["id"] for row in due] == [suspect]
    await once(DispatchLoop(shared), shared)
    assert [b.run_id for b in shared.bell.rung] == [suspect]
    assert shared.bell.rung[0].queue == "steps.default.quarantine"
    assert other != suspect


async def test_what_a_dead_worker_held_is_given_back_in_few_commits(db, shared):
    """INV8: at a commit a run, a process that held hundreds took seconds, and the term with it."""
    play = Play(db, await make_tenant(db, max_running=200, granted=200))
    worker = await make_worker(db, silent_s=60)
    runs = [await play.start() for _ in range(2 * BATCH + 5)]
    for run_id in runs:
        await play.claim(run_id, worker)
    shared.bell.taken()
    assert await once(await reaper(shared), shared) == 1 + len(runs)
    assert sorted(shared.bell.taken()) == sorted(runs)
    assert sorted(run for run, _ in shared.leases.broken) == sorted(runs)
    (row,) = await sql(
        db, "SELECT count(DISTINCT xmin::text) AS n FROM runs WHERE id = ANY(:r)", r=runs
    )
    assert row["n"] == 3
    for run_id in runs[:2]:
        await play.check_whole(run_id)


async def test_a_run_that_cannot_be_given_back_holds_up_nobody(play, db, shared):
    """INV15: also when a whole batch of them comes first."""
    worker = await make_worker(db, silent_s=60)
    runs = [await play.start() for _ in range(BATCH + 3)]
    for run_id in runs:
        await play.claim(run_id, worker)
    bad, good = runs[:BATCH], runs[BATCH:]
    await sql(db, "UPDATE runs SET status = 'from the future' WHERE id = ANY(:b)", b=bad)
    shared.bell.taken()
    assert await once(await reaper(shared), shared) == 1 + len(good)
    assert sorted(shared.bell.taken()) == sorted(good)


async def test_a_run_whose_owner_is_unknown_is_found(play, shared):
    """Its worker's row was pruned, or it left just as the claim came: nobody will ever finish the
    step.
    """
    run_id = await play.start()
    await play.claim(run_id, uuid4())
    assert (await look_once(shared)).orphaned
    assert await once(await reaper(shared), shared) == 1
    assert shared.bell.taken() == [run_id]


# ── admit ────────────────────────────────────────────────────────────────────────────────────────


async def queue(play: Play, count: int) -> list[UUID]:
    """Queue runs while the tenant has no room."""
    await sql(play.db, "UPDATE tenant_slots SET granted = 0 WHERE tenant_id = :t", t=play.tenant_id)
    return [await play.start() for _ in range(count)]


async def test_the_many_of_one_tenant_do_not_go_before_the_few_of_others(db):
    """INV13: the hot tenant's hundred do not go before the others' few; no limit is exceeded."""
    shared = await lead(db, limit=30)
    hot, two, three = [Play(db, await make_tenant(db, max_running=50)) for _ in range(3)]
    await queue(hot, 40)
    await queue(two, 3)
    await queue(three, 3)
    assert await once(AdmitLoop(shared), shared) == 30
    assert [await p.running() for p in (hot, two, three)] == [24, 3, 3]
    first = {b.tenant_id for b in shared.bell.rung[:6]}
    assert first == {two.tenant_id, three.tenant_id}, "their doorbells stand before the hot ones"
    assert await once(AdmitLoop(shared), shared) == 0
    assert [await p.running() for p in (hot, two, three)] == [24, 3, 3]


async def test_what_nobody_else_waits_for_goes_to_who_waits(db):
    """A tenant that is idle, or has what it wants, holds back no slot of the global limit."""
    shared = await lead(db, limit=60)
    hot, idle = [Play(db, await make_tenant(db, max_running=50)) for _ in range(2)]
    await queue(hot, 45)
    await queue(idle, 1)
    assert await once(AdmitLoop(shared), shared) == 46


async def test_older_runs_of_a_tenant_go_first_unless_another_matters_more(db):
    play, shared = Play(db, await make_tenant(db, max_running=2)), await lead(db)
    runs = await queue(play, 3)
    urgent = await play.start(priority=0)
    await once(AdmitLoop(shared), shared)
    assert shared.bell.taken() == [urgent, runs[0]]


async def test_no_tenant_starves_when_the_limit_is_smaller_than_the_demand(db):
    """INV13: three tenants always wait for two slots: in a few turns each has run something."""
    shared = await lead(db, limit=2)
    players = [Play(db, await make_tenant(db)) for _ in range(3)]
    for play in players:
        await queue(play, 12)
    served: Counter[UUID] = Counter()
    admit = AdmitLoop(shared)
    for _ in range(12):
        await once(admit, shared)
        assert sum([await p.running() for p in players]) <= 2
        if not shared.bell.rung:
            break
        bell = shared.bell.rung.pop(0)
        owner = next(p for p in players if p.tenant_id == bell.tenant_id)
        await owner.step(bell.run_id, say())
        served[bell.tenant_id] += 1
    assert len(served) == 3, served
    assert max(served.values()) - min(served.values()) <= 2


async def test_a_new_tenant_gets_a_block(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db, granted=0))
    run_id = await play.start()
    assert (await play.read(run_id)).state.status is Status.QUEUED
    assert await once(AdmitLoop(shared), shared) == 1
    assert shared.bell.taken() == [run_id]


# ── two leaders ──────────────────────────────────────────────────────────────────────────────────


async def test_leadership_is_exclusive_and_every_new_holder_has_a_new_term(db):
    """INV12."""
    a, b = (Leadership(db, uuid4(), name, 60.0) for name in "ab")
    assert await a.seek() == 1
    assert await b.seek() is None
    assert await a.seek() == 1
    await a.resign()
    assert await b.seek() == 2
    assert await a.seek() is None
    await sql(db, "UPDATE leader SET until = clock_timestamp() - interval '1 ms'")
    assert await b.seek() == 3, "its time had run out: another might have led in between"


async def test_a_tick_that_outlasts_a_term_keeps_it(db):
    """A new term has new loops: who is silent would never be found out, term after term."""
    ttl_s = 0.4
    leader, rival = (Leadership(db, uuid4(), name, ttl_s) for name in "ab")
    assert await leader.seek() == 1
    shared = share(db, 1)

    class Slow:
        name = "slow"

        async def run_once(self, look: Any) -> int:
            del look
            await asyncio.sleep(ttl_s / 3)
            return 1

    _, done = await tick(shared, [Slow() for _ in range(6)], leader.keep)
    assert done == 6
    assert await rival.seek() is None
    assert await leader.seek() == 1
    await sql(db, "UPDATE leader SET until = clock_timestamp() - interval '1 ms'")
    assert await rival.seek() == 2
    await asyncio.sleep(ttl_s / 3)
    with pytest.raises(Conflict):
        await tick(shared, [Slow()], leader.keep)


async def test_a_nudge_that_cannot_be_read_does_not_make_the_scheduler_deaf(db, shared):
    heard = asyncio.Event()

    class Noise:
        async def __aenter__(self) -> AsyncIterator[dict[str, Any]]:
            return self._nudges()

        async def __aexit__(self, *_: object) -> None:
            pass

        async def _nudges(self) -> AsyncIterator[dict[str, Any]]:
            if not channel.listened:
                channel.listened = True
                raise ValueError("no JSON")
            heard.set()
            yield {}

    class Channel:
        listened = False

        def nudges(self) -> Noise:
            return Noise()

    channel: Any = Channel()
    scheduler = Scheduler(shared.settings)
    serving = asyncio.create_task(scheduler.serve(shared, channel, lambda _: []))
    async with asyncio.timeout(10):
        await heard.wait()
    scheduler.stop()
    await serving


async def test_eight_seek_and_one_leads(db):
    seekers = [Leadership(db, uuid4(), str(n), 60.0) for n in range(8)]
    terms = await asyncio.gather(*(s.seek() for s in seekers))
    assert sorted(t for t in terms if t) == [1]


async def test_the_writes_of_an_old_leader_are_refused(db):
    """INV12: dispatch, wake, admit and reap of a term that is over change nothing."""
    play, old = Play(db, await make_tenant(db, max_running=5, granted=5)), await lead(db)
    delayed, orphan, *_ = [await play.start() for _ in range(5)]  # the rest are rung, unanswered
    await play.step(delayed, StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
    await play.claim(orphan, await make_worker(db))
    await sql(db, "UPDATE workers SET died_at = clock_timestamp()")
    await make_due(db)
    await queue(play, 1)
    await sql(db, "UPDATE tenant_slots SET granted = 5")
    await sql(db, "UPDATE leader SET until = clock_timestamp() - interval '1 ms'")
    await lead(db)
    before = await sql(db, "SELECT * FROM runs ORDER BY id")
    slots = await sql(db, "SELECT running, granted FROM tenant_slots")
    assert await once(DispatchLoop(old), old) == 0
    for loop in (WakeLoop(old), AdmitLoop(old), await reaper(old)):
        with pytest.raises(Conflict):
            await once(loop, old)
    assert await sql(db, "SELECT * FROM runs ORDER BY id") == before
    assert await sql(db, "SELECT running, granted FROM tenant_slots") == slots
    assert old.bell.rung == []


async def test_an_old_leader_declares_nobody_dead(play, db):
    """INV12: "every write compares the term": a death is one."""
    old = await lead(db)
    await make_worker(db, silent_s=60)
    await sql(db, "UPDATE leader SET until = clock_timestamp() - interval '1 ms'")
    await lead(db)
    with contextlib.suppress(Conflict):
        await once(await reaper(old), old)
    assert await sql(db, "SELECT died_at FROM workers") == [{"died_at": None}]
