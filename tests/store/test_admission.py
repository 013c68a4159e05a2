"""Admission against a real Postgres: shares of time, newcomers, limits, keys, order of sessions.

`run_once` is called by hand and time is made to pass by moving the turns into the past.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from uuid import UUID, uuid4

import pytest

from harness_common.commands import StartRun, start_run
from harness_common.core.errors import Conflict
from harness_common.core.inputs import StepFailed
from harness_common.core.step import Failure
from harness_common.settings import Settings
from harness_common.store.audit import Actor
from harness_common.store.db import Database
from harness_common.store.tenants import set_platform_limits, set_tenant_limits
from harness_common.store.waiting import ordinal, why_queued
from harness_worker.scheduler.admit import COLD, AdmitLoop
from harness_worker.scheduler.release import ReleaseLoop
from harness_worker.scheduler.wake import WakeLoop
from tests.store.play import WHEN, Play, make_tenant, make_worker, say, sql
from tests.store.test_scheduler import lead, make_due, once, queue, share

ME = Actor("test")
SETTINGS = Settings()


async def pass_time(db: Database, seconds: float) -> None:
    """Let every turn that goes on be older by `seconds`."""
    await sql(
        db,
        "UPDATE runs SET turn_at = turn_at - make_interval(secs => :s) WHERE turn_at IS NOT NULL",
        s=seconds,
    )
    await sql(db, "UPDATE tenant_slots SET turn_sum = turn_sum - running * :s", s=seconds)


async def used_s(play: Play) -> float:
    (row,) = await sql(
        play.db,
        "SELECT used_s + running * extract(epoch FROM clock_timestamp())::float8 - turn_sum "
        "AS used FROM tenant_slots WHERE tenant_id = :t",
        t=play.tenant_id,
    )
    return float(row["used"])


async def limit(play: Play, **changes: float | None) -> None:
    await set_tenant_limits(play.db, play.tenant_id, changes, ME)


async def limit_all(db: Database, **changes: float | None) -> None:
    await set_platform_limits(db, await make_tenant(db, max_running=0), changes, ME)


async def marked(*plays: Play) -> list[bool]:
    rows = await sql(plays[0].db, "SELECT tenant_id, crowded FROM tenant_slots")
    found = {r["tenant_id"]: r["crowded"] for r in rows}
    return [found[p.tenant_id] for p in plays]


async def status(play: Play, run_id: UUID) -> str:
    return str((await play.read(run_id)).state.status)


async def why(play: Play, run_id: UUID) -> dict[str, Any]:
    found = await why_queued(play.db, play.tenant_id, run_id, SETTINGS)
    assert found is not None
    return found


# ── shares ───────────────────────────────────────────────────────────────────────────────────────


class Schedule:
    """Two tenants whose runs take one turn each; ends turns when their time is over."""

    def __init__(self, shared: Any, *players: tuple[Play, float]) -> None:
        self.shared, self.players, self.admit = shared, players, AdmitLoop(shared)
        self.going: list[tuple[float, Play, UUID]] = []
        self.now = 0.0
        self.most = 0

    async def run(self, seconds: float, tick_s: float) -> None:
        owners = {p.tenant_id: (p, turn_s) for p, turn_s in self.players}
        until = self.now + seconds
        while self.now < until:
            await once(self.admit, self.shared)
            for bell in self.shared.bell.rung:
                play, turn_s = owners[bell.tenant_id]
                self.going.append((self.now + turn_s, play, bell.run_id))
            self.shared.bell.taken()
            self.most = max(self.most, len(self.going))
            await pass_time(self.shared.db, tick_s)
            self.now += tick_s
            over = [g for g in self.going if g[0] <= self.now + 1e-9]
            self.going = [g for g in self.going if g[0] > self.now + 1e-9]
            for _, play, run_id in over:
                await play.step(run_id, say())


@pytest.mark.parametrize("turns", [(1.0, 4.0), (4.0, 1.0)])
async def test_shares_of_time_follow_the_weights(db, turns):
    shared = await lead(db, limit=4)
    a, b = [Play(db, await make_tenant(db)) for _ in range(2)]
    await limit(a, weight=3.0)
    for play in (a, b):
        await queue(play, 90)
    world = Schedule(shared, (a, turns[0]), (b, turns[1]))
    await world.run(28, 1.0)
    got = (await used_s(a), await used_s(b))
    assert got[0] / sum(got) == pytest.approx(0.75, abs=0.075), got
    assert world.most == 4


async def test_a_newcomer_starts_at_once_beside_a_hog(db):
    """INV13: the hog's turns may be as long as they like."""
    shared = await lead(db, limit=20)
    hog, quiet = [Play(db, await make_tenant(db)) for _ in range(2)]
    await queue(hog, 40)
    await sql(db, "UPDATE tenant_slots SET granted = 0")
    admit = AdmitLoop(shared)
    await once(admit, shared)
    assert await hog.running() == 19, "one slot in twenty is kept for who runs nothing"
    run_id = await quiet.start()
    if await status(quiet, run_id) == "queued":
        await once(admit, shared)
    assert await status(quiet, run_id) == "running"


async def test_the_doorbell_of_a_newcomer_goes_before_all_others(db):
    """A kept slot is of no use to who stands in the broker behind the hog's runs."""
    shared = await lead(db, limit=20)
    hog, quiet, inline = [Play(db, await make_tenant(db)) for _ in range(3)]
    await queue(hog, 40)
    admit = AdmitLoop(shared)
    await once(admit, shared)
    rung = [b.priority for b in shared.bell.rung]
    assert (rung[0], set(rung[1:])) == (0, {6}), "it ran nothing itself, at first"
    shared.bell.taken()
    (waiting,) = await queue(quiet, 1)
    await once(admit, shared)
    assert [(b.run_id, b.priority) for b in shared.bell.rung] == [(waiting, 0)]
    await sql(db, "UPDATE tenant_slots SET granted = running + 2")
    started = [await start_run(db, inline.tenant_id, StartRun("a", "hi")) for _ in range(2)]
    assert [s.doorbell.priority for s in started if s.doorbell] == [0, 6]


async def test_a_tenant_that_was_away_gets_its_share_and_no_more(db):
    shared = await lead(db, limit=4)
    early, late = [Play(db, await make_tenant(db)) for _ in range(2)]
    await queue(early, 60)
    world = Schedule(shared, (early, 1.0), (late, 1.0))
    await world.run(8, 1.0)
    before = await used_s(early)
    await queue(late, 40)
    await world.run(8, 1.0)
    assert await used_s(late) == pytest.approx(await used_s(early) - before, abs=3.0)


# ── capacity ─────────────────────────────────────────────────────────────────────────────────────


async def test_no_more_is_let_in_than_the_workers_can_hold(db):
    """Queue depth in the broker is bounded: a million queued runs wait in Postgres."""
    shared = await lead(db)
    worker = await make_worker(db, concurrency=6)
    play = Play(db, await make_tenant(db))
    await queue(play, 12)
    admit = AdmitLoop(shared)
    assert await once(admit, shared) == 6
    first, second, *_ = shared.bell.taken()
    await play.settle(await play.claim(first, worker), say("more", tools=["look"]))
    assert await once(admit, shared) == 0, "a claimed one and one between steps count as well"
    await play.step(second, say())
    assert await once(admit, shared) == 1
    await sql(db, "UPDATE workers SET stopping_at = clock_timestamp()")
    await make_worker(db, concurrency=8)
    assert await once(admit, shared) == 2, "another worker came, the first takes nothing more"


async def test_before_the_first_worker_comes_only_a_few_are_let_in(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db))
    await queue(play, COLD + 6)
    assert await once(AdmitLoop(shared), shared) == COLD


async def test_runs_of_a_queue_without_workers_take_nobodys_slots(db):
    shared = await lead(db, limit=10)
    await make_worker(db, concurrency=10)
    play, other = [Play(db, await make_tenant(db)) for _ in range(2)]
    await queue(play, 20)
    await sql(db, "UPDATE runs SET queue = 'steps.gpu', priority = 0")
    mine = await queue(play, 2)
    theirs = await queue(other, 2)
    admit = AdmitLoop(shared)
    assert await once(admit, shared) == 4
    assert set(shared.bell.taken()) == {*mine, *theirs}
    assert await marked(play, other) == [False, False]
    await make_worker(db, queue="steps.gpu", concurrency=3)
    assert await once(admit, shared) == 3


async def test_a_run_without_workers_for_its_queue_does_not_begin_inline(play):
    await make_worker(play.db, queue="steps.other")
    run_id = await play.start()
    assert (await why(play, run_id))["for"] == "no_worker"
    await make_worker(play.db)
    await sql(play.db, "UPDATE runs SET status = 'cancelled'")
    assert await status(play, await play.start()) == "running"


async def test_running_runs_of_a_queue_that_lost_its_workers_do_not_starve_the_rest(db):
    shared = await lead(db)
    await make_worker(db, concurrency=5)
    gone = await make_worker(db, queue="steps.gpu", concurrency=5)
    play = Play(db, await make_tenant(db))
    stuck = await queue(play, 5)
    await sql(db, "UPDATE runs SET queue = 'steps.gpu'")
    admit = AdmitLoop(shared)
    assert await once(admit, shared) == len(stuck)
    await sql(db, "DELETE FROM workers WHERE incarnation = :w", w=gone)
    await queue(play, 9)
    assert await once(admit, shared) == 5


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


async def test_limits_count_from_the_next_round_on(db):
    shared = await lead(db)
    play, other = [Play(db, await make_tenant(db, max_running=2)) for _ in range(2)]
    await queue(play, 12)
    admit = AdmitLoop(shared)
    assert await once(admit, shared) == 2
    await limit(play, max_running=5)
    assert await once(admit, shared) == 3
    await limit(play, max_running=1)
    assert await once(admit, shared) == 0
    await limit(play, max_running=100)
    await limit_all(db, max_running=7)
    assert await once(admit, shared) == 2
    (row,) = await sql(db, "SELECT sum(granted) AS n FROM tenant_slots")
    assert row["n"] <= 7
    assert await status(other, await other.start()) == "queued"
    await limit_all(db, max_running=None)
    assert await once(admit, shared) == 6


async def test_a_lower_global_limit_takes_the_blocks_back_without_anybody_waiting(db):
    """INV13: else tenants would begin more runs inline than there may be."""
    shared = await lead(db, limit=50)
    play = Play(db, await make_tenant(db))
    admit = AdmitLoop(shared)
    await once(admit, shared)
    assert await status(play, await play.start()) == "running"
    await limit_all(db, max_running=2)
    await once(admit, shared)
    assert await status(play, await play.start()) == "running"
    assert await status(play, await play.start()) == "queued"


async def test_starts_per_second(db):
    """Counted by the leader alone: nothing begins inline then."""
    shared = await lead(db)
    await make_worker(db)
    play, free = [Play(db, await make_tenant(db)) for _ in range(2)]
    await limit(play, starts_per_s=2.0)
    runs = [await play.start() for _ in range(8)]
    assert {await status(play, r) for r in runs} == {"queued"}
    assert await status(free, await free.start()) == "running"
    admit = AdmitLoop(shared)
    assert await once(admit, shared) == 1
    shared.again_in_s = None
    assert await once(admit, shared) == 0
    assert 0 < (shared.again_in_s or 0) <= 0.5, "the next round comes when one more may start"
    await sql(db, "UPDATE tenant_slots SET starts_tat = starts_tat - interval '0.6 s'")
    assert await once(admit, shared) == 1
    await sql(db, "UPDATE tenant_slots SET starts_tat = starts_tat + interval '1 hour'")
    assert await once(admit, shared) == 0
    assert "2 starts per second" in (await why(play, runs[-1]))["text"]
    resumed = runs[5]
    await sql(db, "UPDATE runs SET started = true WHERE id = :r", r=resumed)
    shared.bell.taken()
    assert await once(admit, shared) == 1
    assert shared.bell.taken() == [resumed], "going on is no start"
    await limit(play, starts_per_s=None)
    assert await once(admit, shared) == 5


async def test_starts_per_second_over_all_tenants(db):
    shared = await lead(db)
    plays = [Play(db, await make_tenant(db)) for _ in range(3)]
    await limit_all(db, starts_per_s=1.0)
    runs = [await p.start() for p in plays]
    assert {await status(p, r) for p, r in zip(plays, runs, strict=True)} == {"queued"}
    admit = AdmitLoop(shared)
    assert await once(admit, shared) == 1
    assert await once(admit, shared) == 0
    await sql(db, "UPDATE platform SET starts_tat = starts_tat - interval '1.1 s'")
    assert await once(admit, shared) == 1


async def test_priority_decides_within_a_tenant_between_new_and_resumed_runs(db):
    play, shared = Play(db, await make_tenant(db, max_running=2)), await lead(db)
    runs = await queue(play, 3)
    await sql(db, "UPDATE runs SET started = true WHERE id = ANY(:r)", r=runs[:2])
    urgent = await play.start(priority=0)
    await once(AdmitLoop(shared), shared)
    assert shared.bell.taken() == [urgent, runs[0]]


# ── whose turns must end ─────────────────────────────────────────────────────────────────────────


async def test_crowded_says_whose_slots_a_waiting_run_could_use(db):
    shared = await lead(db, limit=6)
    full, quiet = Play(db, await make_tenant(db, max_running=2)), Play(db, await make_tenant(db))
    await queue(full, 3)
    await queue(quiet, 1)
    admit = AdmitLoop(shared)
    await once(admit, shared)
    assert await marked(full, quiet) == [True, False], "its own slots are all that would help"
    third = Play(db, await make_tenant(db))
    await queue(third, 5)
    await once(admit, shared)
    assert await marked(full, quiet, third) == [True, True, True], "all slots are taken"
    await sql(db, "UPDATE runs SET status = 'cancelled' WHERE status = 'queued'")
    await once(admit, shared)
    assert await marked(full, quiet, third) == [False, False, False]


async def test_crowded_is_written_only_when_it_changes(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db, max_running=1))
    await queue(play, 3)
    admit = AdmitLoop(shared)
    await once(admit, shared)
    seen = await sql(db, "SELECT xmin::text AS x FROM tenant_slots")
    await once(admit, shared)
    assert await sql(db, "SELECT xmin::text AS x FROM tenant_slots") == seen


async def test_a_claim_learns_that_its_tenant_is_crowded(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db, max_running=1))
    await queue(play, 2)
    await once(AdmitLoop(shared), shared)
    (run_id,) = shared.bell.taken()
    claimed = await play.try_claim(run_id, 1)
    assert claimed is not None
    assert claimed.crowded


# ── keys and sessions ────────────────────────────────────────────────────────────────────────────


async def test_a_key_runs_at_most_its_number_first_come_first(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db))
    runs = [await play.start(concurrency_key="k", concurrency_max=2) for _ in range(5)]
    single = [await play.start(concurrency_key="j") for _ in range(2)]
    release, admit = ReleaseLoop(shared), AdmitLoop(shared)

    async def round_() -> Any:
        await once(release, shared)
        await once(admit, shared)
        return shared.bell.taken()

    assert await round_() == [runs[0], runs[1], single[0]]
    assert await round_() == []
    found = await why(play, runs[4])
    assert found["for"] == "concurrency_key"
    assert found["text"] == "concurrency key k 2 of 2 running, 3rd in line"
    await play.step(runs[0], say())
    assert await round_() == [runs[2]]
    await play.step(single[0], say())
    await play.step(runs[2], say())
    assert set(await round_()) == {runs[3], single[1]}


async def test_the_strictest_of_a_key_says_how_many_run(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db))
    many, alone, after = [
        await play.start(concurrency_key="k", concurrency_max=most) for most in (3, 1, 3)
    ]
    release, admit = ReleaseLoop(shared), AdmitLoop(shared)
    order = []
    for _ in range(3):
        for _ in range(2):  # the second time with what runs, and not with what was let go
            await once(release, shared)
            await once(admit, shared)
        started = shared.bell.taken()
        order.append(started)
        if started == [alone]:
            found = await why(play, after)
            assert found["text"] == "concurrency key k 1 of 1 running, 1st in line"
        for run_id in started:
            await play.step(run_id, say())
    assert order == [[many], [alone], [after]]


async def test_what_was_let_go_counts_against_its_key_before_it_runs(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db))
    for _ in range(3):
        await play.start(concurrency_key="k", concurrency_max=1)
    release = ReleaseLoop(shared)
    assert await once(release, shared) == 1
    assert await once(release, shared) == 0


async def test_keys_are_looked_at_round_and_round(db, monkeypatch):
    monkeypatch.setattr("harness_worker.scheduler.release._KEYS", 2)
    shared = await lead(db)
    play, other = [Play(db, await make_tenant(db)) for _ in range(2)]
    for n in range(5):
        await play.start(concurrency_key=f"k{n}")
        await other.start(concurrency_key=f"k{n}")
    release = ReleaseLoop(shared)
    done = [await once(release, shared) for _ in range(6)]
    assert sum(done) == 10
    assert max(done) == 2


async def test_the_same_key_of_another_tenant_is_another_key(db):
    shared = await lead(db)
    plays = [Play(db, await make_tenant(db)) for _ in range(2)]
    for play in plays:
        await play.start(concurrency_key="k")
    assert await once(ReleaseLoop(shared), shared) == 2


async def test_a_run_behind_its_session_waits_for_the_one_before(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db))
    first = await play.start()
    session = (await play.read(first)).session_id
    behind = [await play.start(session_id=session, on_busy="enqueue") for _ in range(2)]
    release, admit = ReleaseLoop(shared), AdmitLoop(shared)
    assert await once(release, shared) == 0
    await once(admit, shared)
    assert shared.bell.taken() == []
    found = await why(play, behind[1])
    assert (found["for"], found["place"]) == ("session", 3)
    await play.step(first, say())
    assert await once(release, shared) == 1
    await once(admit, shared)
    assert shared.bell.taken() == [behind[0]]
    assert await once(release, shared) == 0


# ── two leaders ──────────────────────────────────────────────────────────────────────────────────


async def test_an_old_leader_lets_nothing_go_and_marks_nobody(db):
    """INV12."""
    old = await lead(db)
    play = Play(db, await make_tenant(db, max_running=1))
    await play.start(concurrency_key="k")
    await queue(play, 3)
    await sql(db, "UPDATE leader SET until = clock_timestamp() - interval '1 ms'")
    await lead(db)
    slots = await sql(db, "SELECT running, granted, crowded FROM tenant_slots")
    with pytest.raises(Conflict):
        await once(ReleaseLoop(old), old)
    with pytest.raises(Conflict):
        await once(AdmitLoop(old), old)
    assert await sql(db, "SELECT running, granted, crowded FROM tenant_slots") == slots


async def test_two_that_take_themselves_for_leaders_exceed_no_limit(db):
    """INV13 with INV12: one of them is refused."""
    first = await lead(db, limit=5)
    plays = [Play(db, await make_tenant(db)) for _ in range(3)]
    for play in plays:
        await queue(play, 6)
    second = share(db, first.term, 5)
    await asyncio.gather(
        *(once(AdmitLoop(s), s) for s in (first, second, first, second)), return_exceptions=True
    )
    assert sum([await p.running() for p in plays]) <= 5
    (row,) = await sql(db, "SELECT sum(granted) AS n FROM tenant_slots")
    assert row["n"] <= 5


async def test_quotas_hold_while_starts_ends_and_admission_race(db):
    """INV13: sampled while everything goes on at once."""
    shared = await lead(db, limit=9)
    plays = [Play(db, await make_tenant(db, max_running=m, granted=0)) for m in (2, 5, 9)]
    over: list[Any] = []
    stop = asyncio.Event()

    async def sample() -> None:
        while not stop.is_set():
            rows = await sql(db, "SELECT running, max_running FROM tenant_slots")
            over.extend(r for r in rows if r["running"] > r["max_running"])
            if sum(r["running"] for r in rows) > 9:
                over.append({"all": rows})

    async def admit() -> None:
        loop = AdmitLoop(shared)
        while not stop.is_set():
            await once(loop, shared)

    async def work(play: Play) -> None:
        for _ in range(12):
            await play.start()
            going = "SELECT id FROM runs WHERE status = 'running' AND tenant_id = :t"
            for row in await sql(db, going, t=play.tenant_id):
                await play.step(row["id"], say())

    others = [asyncio.ensure_future(f()) for f in (sample, admit)]
    await asyncio.gather(*(work(p) for p in plays))
    stop.set()
    await asyncio.gather(*others)
    assert over == []


# ── why ──────────────────────────────────────────────────────────────────────────────────────────


async def test_why_a_run_waits_and_where(db):
    shared = await lead(db, limit=3)
    await make_worker(db, concurrency=50)
    play = Play(db, await make_tenant(db, max_running=2))
    runs = await queue(play, 6)
    await once(AdmitLoop(shared), shared)
    found = await why(play, runs[4])
    assert (found["for"], found["place"]) == ("tenant_limit", 3)
    assert found["text"] == "tenant limit 2 running, 3rd in line"
    urgent = await play.start(priority=0)
    assert (await why(play, urgent))["place"] == 1
    assert (await why(play, runs[4]))["place"] == 4
    await limit(play, max_running=100)
    await limit_all(db, max_running=2)
    assert (await why(play, runs[4]))["text"] == "global limit 2 running, 4th in line"
    assert await why_queued(db, play.tenant_id, runs[0], SETTINGS) is None
    assert await why_queued(db, uuid4(), runs[4], SETTINGS) is None


async def test_a_place_is_counted_up_to_a_thousand(db):
    play = Play(db, await make_tenant(db, granted=0))
    (run_id,) = await queue(play, 1)
    for count in (999, 2):
        await sql(
            db,
            "INSERT INTO runs (tenant_id, id, session_id, agent_id, agent_name, agent_version, "
            "status, next_kind, queue, input, created_by, trace_id, queued_at, limits, retry) "
            "SELECT tenant_id, uuid7(), session_id, agent_id, agent_name, agent_version, 'queued', "
            "'model', queue, '', '', '', queued_at - interval '1 h', limits, retry "
            "FROM runs, generate_series(1, :n) WHERE id = :r",
            n=count,
            r=run_id,
        )
        found = await why(play, run_id)
        if count == 999:
            assert (found["place"], found["text"].split(", ")[1]) == (1000, "1000th in line")
        else:
            assert (found["place"], found["text"].split(", ")[1]) == (None, "1000+ in line")


@pytest.mark.parametrize(
    ("place", "words"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (112, "112th"), (121, "121st")],
)
def test_ordinals(place, words):
    assert ordinal(place) == words


async def test_a_woken_run_with_a_key_waits_for_its_key(db):
    shared = await lead(db)
    play = Play(db, await make_tenant(db))
    runs = [await play.start(concurrency_key="k") for _ in range(2)]
    release, admit = ReleaseLoop(shared), AdmitLoop(shared)
    await once(release, shared)
    await once(admit, shared)
    await play.step(runs[0], StepFailed(Failure("limited", "L", "l", 60.0), WHEN))
    await once(release, shared)
    await once(admit, shared)
    assert await status(play, runs[1]) == "running", "who waits for a time leaves its key"
    await make_due(db)
    await once(WakeLoop(shared), shared)
    assert await status(play, runs[0]) == "queued"
    assert await once(release, shared) == 0
    counted = Counter([await status(play, r) for r in runs])
    assert counted == {"queued": 1, "running": 1}
