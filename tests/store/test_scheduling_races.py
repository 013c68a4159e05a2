"""What one tenant's runs and schedules must not do to those of others: each duty of the scheduler
serves the neighbours of what it cannot serve.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from harness_common.commands import ForkRun, StartRun, fork_run, start_in
from harness_common.core.errors import Conflict
from harness_common.core.fairness import Ledger, Room, Stream, Tenant
from harness_common.core.fairness import share as divide
from harness_common.core.inputs import StepFailed
from harness_common.core.schedule import CatchUp, Every, Overlap
from harness_common.core.step import Failure
from harness_common.settings import SchedulerSettings, Settings
from harness_common.store.audit import Actor
from harness_common.store.sessions import close_session
from harness_common.store.tenants import set_platform_limits, set_tenant_limits
from harness_worker.scheduler import admit as admission
from harness_worker.scheduler import cron, release
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.cancel import CancelLoop
from harness_worker.scheduler.release import ReleaseLoop
from harness_worker.scheduler.service import Scheduler, look_once
from harness_worker.scheduler.wake import WakeLoop
from tests.store.play import WHEN, Play, make_tenant, make_worker, say, sql
from tests.store.test_scheduler import lead, make_due, once
from tests.store.test_schedules import later, make, outcomes
from tests.store.test_schedules import share as lead_schedules


class Channel:
    """Keeps what was published."""

    async def publish(self, name: str, body: bytes) -> None:
        del name, body


async def spoil(play: Play, run_id: UUID) -> None:
    """Make a run one that this version cannot read."""
    await sql(play.db, "UPDATE runs SET limits = '{}' WHERE id = :r", r=run_id)


async def queued(play: Play) -> UUID:
    """Start a run that has to wait for admission."""
    await sql(play.db, "UPDATE tenant_slots SET granted = 0 WHERE tenant_id = :t", t=play.tenant_id)
    return await play.start()


async def status(play: Play, run_id: UUID) -> str:
    (row,) = await sql(play.db, "SELECT status FROM runs WHERE id = :r", r=run_id)
    return str(row["status"])


# ── schedules ────────────────────────────────────────────────────────────────────────────────────


async def test_a_schedule_that_catches_up_does_not_keep_others_from_firing(db, monkeypatch):
    """A tenant with an hour of seconds to make good has one firing a turn, like everybody."""
    monkeypatch.setattr(cron, "BUDGET_S", 0.3)
    shared = await lead_schedules(db)
    hog, other = [Play(db, await make_tenant(db)) for _ in range(2)]
    many = await make(
        hog, Every(1.0, WHEN), overlap=Overlap.ALLOW, catch_up=CatchUp.ALL, name="many"
    )
    one = await make(other, name="one")
    await later(hog, many, hours=1)
    await later(other, one, minutes=40)
    await cron.CronLoop(shared).run_once(await look_once(shared))
    assert await outcomes(other, one) == ["started"]
    assert len(await outcomes(hog, many)) > 1, "what is left of the time is used"


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


async def test_a_child_that_cannot_be_read_does_not_keep_its_siblings_alive(play, db):
    """INV15; and a round that stopped nobody is no work done, else the scheduler never rests."""
    shared = await lead(db)
    shared.redis = Channel()
    parent, spoiled, sibling = [await play.start() for _ in range(3)]
    for n, child in enumerate((spoiled, sibling)):
        await sql(
            db,
            "UPDATE runs SET parent_run_id = :p, parent_step = 1, parent_idx = :n WHERE id = :c",
            p=parent, c=child, n=n,
        )  # fmt: skip
    await spoil(play, spoiled)
    await sql(db, "UPDATE runs SET status = 'failed', finished_at = now() WHERE id = :p", p=parent)
    cancel = CancelLoop(shared)
    await once(cancel, shared)
    assert await status(play, sibling) == "cancelled"
    assert await once(cancel, shared) == 0


# ── admission ────────────────────────────────────────────────────────────────────────────────────


async def test_streams_beyond_the_bound_of_a_round_get_their_turn(db, monkeypatch):
    """Streams that no worker serves stay: they must not hide those behind them."""
    monkeypatch.setattr(admission, "_STREAMS", 2)
    shared = await lead(db)
    await make_worker(db)
    plays = sorted([Play(db, await make_tenant(db)) for _ in range(5)], key=lambda p: p.tenant_id)
    waits = [await queued(play) for play in plays]
    await sql(db, "UPDATE runs SET queue = 'steps.nobody' WHERE id <> :r", r=waits[-1])
    admit = AdmitLoop(shared)
    for _ in range(4):
        await once(admit, shared)
    assert await status(plays[-1], waits[-1]) == "running"


async def test_a_queued_run_that_cannot_be_read_does_not_hold_up_its_tenant(db):
    """INV15."""
    shared = await lead(db)
    play = Play(db, await make_tenant(db, max_running=1))
    spoiled, good = await queued(play), await queued(play)
    await spoil(play, spoiled)
    admit = AdmitLoop(shared)
    for _ in range(3):
        await once(admit, shared)
    assert await status(play, good) == "running"


async def test_a_queued_run_that_cannot_be_read_takes_no_slot_from_other_tenants(db):
    """INV15: its tenant has used least, and would be offered the only slot for ever."""
    shared = await lead(db, limit=1)
    plays = [Play(db, await make_tenant(db)) for _ in range(2)]
    plays.sort(key=lambda p: p.tenant_id)
    spoiled, good = [await queued(play) for play in plays]
    await spoil(plays[0], spoiled)
    admit = AdmitLoop(shared)
    for _ in range(3):
        await once(admit, shared)
    assert await status(plays[1], good) == "running"


async def test_turns_that_began_without_the_scheduler_do_not_make_a_tenant_look_slow():
    """While nobody waits, runs start at once and wake: an hour of such turns is not the length of
    the few that admission let in before.
    """
    slow_looking, other = UUID(int=1), UUID(int=2)
    ledger, queues = Ledger(), {"q": 10}

    def tenant(who: UUID, settled_s: float) -> Tenant:
        return Tenant(who, waiting={Stream("q"): 20}, settled_s=settled_s)

    ledger.enter([tenant(slow_looking, 0.0)], queues, 0.0)
    ledger.admitted(slow_looking, 5)
    seen = ledger.enter([tenant(slow_looking, 3600.0), tenant(other, 0.0)], queues, 3600.0)
    given = divide(seen, Room(10, queues))
    assert {who: sum(mine.values()) for who, mine in given.items()} == {slow_looking: 5, other: 5}


# ── timers ───────────────────────────────────────────────────────────────────────────────────────


async def test_runs_due_that_cannot_be_read_do_not_keep_others_asleep(play, db):
    """INV15: the oldest are looked at first, a batch at a time."""
    shared = await lead(db)
    shared.settings = Settings(scheduler=SchedulerSettings(batch=2))
    runs = [await play.start() for _ in range(3)]
    for run_id in runs:
        await play.step(run_id, StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
    await make_due(db)
    for n, run_id in enumerate(runs[:2]):
        await spoil(play, run_id)
        await sql(
            db, "UPDATE runs SET wake_at = wake_at - make_interval(secs => :n) WHERE id = :r",
            n=2.0 + n, r=run_id,
        )  # fmt: skip
    wake = WakeLoop(shared)
    for _ in range(3):
        await once(wake, shared)
    assert await status(play, runs[2]) == "running"


# ── slots of a throttled provider ────────────────────────────────────────────────────────────────


async def test_a_fork_of_a_delayed_run_has_no_share_in_its_slot(play):
    """A permit is one call: a copy of its run asks for one of its own."""
    run_id = await play.start()
    permit = {"scope": "x:y:z", "at": WHEN.isoformat(), "hits": 1, "spread": False}
    failure = Failure("limited", "L", "l", 60.0, permit=permit)
    await play.step(run_id, StepFailed(failure, WHEN))
    assert "permit" in (await play.read(run_id)).state.memo
    made = await fork_run(play.db, play.tenant_id, run_id, ForkRun())
    assert "permit" not in (await play.read(made.run_id)).state.memo


# ── how often the scheduler looks ────────────────────────────────────────────────────────────────


async def test_a_run_behind_one_that_waits_for_a_person_costs_no_more_than_being_idle(play, db):
    """Held runs may wait for days: a tick for them is as rare as any other without news."""
    shared = await lead(db)
    scheduler = Scheduler(shared.settings)
    run_id = await play.start()
    session = (await play.read(run_id)).session_id
    await play.start(session_id=session, on_busy="enqueue")
    await sql(db, "UPDATE runs SET wake_at = NULL")
    look = await look_once(shared)
    assert look.behind
    assert scheduler._pause(look, 0) == shared.settings.scheduler.idle_tick_s


# ── sessions ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_session_is_not_closed_under_a_run_that_starts_at_the_same_time(play, db):
    """Whoever waited for the start must see the run that it made."""
    first = await play.start()
    await play.step(first, say())
    session = (await play.read(first)).session_id
    async with db.tenant_transaction(play.tenant_id) as conn:
        request = StartRun("a", "again", session_id=session)
        await start_in(db, conn, play.tenant_id, request, actor=None)
        closing = asyncio.create_task(close_session(db, play.tenant_id, session, Actor("test")))
        await asyncio.sleep(0.3)
        assert not closing.done()
    with pytest.raises(Conflict):
        await closing


async def test_more_held_runs_than_a_look_takes_are_gone_through_at_the_pace_of_ticks(
    play, db, monkeypatch
):
    monkeypatch.setattr(release, "_KEYS", 2)
    shared = await lead(db)
    for key in "abc":
        for _ in range(2):
            await play.start(concurrency_key=key)
    loop = ReleaseLoop(shared)
    assert await once(loop, shared) == 2
    assert shared.again_in_s == shared.settings.scheduler.tick_s
    shared.again_in_s = None
    assert await once(loop, shared) == 1
    assert shared.again_in_s is None


# ── steps per second ─────────────────────────────────────────────────────────────────────────────


async def put_off(play: Play, count: int) -> list[UUID]:
    """Let a tenant of one step a second begin so many; return those that wait for their places."""
    await set_tenant_limits(play.db, play.tenant_id, {"steps_per_s": 1.0}, Actor("test"))
    out = []
    for _ in range(count):
        run_id = await play.start()
        claimed = await play.try_claim(run_id, (await play.read(run_id)).version)
        assert claimed is not None
        if claimed.put_off:
            failure = Failure("limited", "STEP_RATE", "", claimed.wait_s, scope="steps_per_s")
            await play.settle(claimed.run, StepFailed(failure, WHEN, 0.0))
            out.append(run_id)
    return out


async def test_places_that_are_used_late_are_still_one_at_a_time(play, db):
    """INV13: when the scheduler was away, or slots were taken, places of many seconds are due at
    one moment.
    """
    shared = await lead(db)
    waiting = await put_off(play, 6)
    await make_due(db)
    await once(WakeLoop(shared), shared)
    waits = []
    for run_id in waiting:
        claimed = await play.try_claim(run_id, (await play.read(run_id)).version)
        assert claimed is not None
        waits.append(claimed.wait_s)
    assert sum(wait_s <= 0.25 for wait_s in waits) <= 1, waits


async def test_a_limit_on_steps_that_is_taken_off_lets_the_waiting_go(play, db):
    """A change counts at once; a daily limit is looked at again within a minute."""
    waiting = await put_off(play, 100)
    await set_tenant_limits(db, play.tenant_id, {"steps_per_s": None}, Actor("test"))
    (row,) = await sql(
        db, "SELECT max(extract(epoch FROM wake_at - clock_timestamp()))::float8 AS s FROM runs "
        "WHERE id = ANY(:w)", w=waiting,
    )  # fmt: skip
    assert row["s"] <= 65.0


# ── places of a queue ────────────────────────────────────────────────────────────────────────────


async def test_many_that_are_due_soon_do_not_hide_the_doorbells_of_a_queue(play, db):
    """The broker holds no more doorbells of a queue than its workers have places."""
    shared = await lead(db, limit=1)  # counts up to two that are due within a minute
    await set_platform_limits(db, play.tenant_id, {"max_running": 100}, Actor("test"))
    await make_worker(db, concurrency=1)
    await make_worker(db, queue="steps.other", concurrency=10)
    for _ in range(2):
        failure = Failure("limited", "L", "l", 1.0)
        await play.step(await play.start(), StepFailed(failure, WHEN))
    first = await play.start()
    assert await status(play, first) == "running"
    second = await queued(play)
    await once(AdmitLoop(shared), shared)
    assert await status(play, second) == "queued"
