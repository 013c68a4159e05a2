"""Schedules against the real Postgres: each duty of the loop called by hand, time moved by SQL."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from harness_api.schemas.schedules import ScheduleCreate, plain_run
from harness_common.contracts.skill import Pin, SkillSpec, pins_in
from harness_common.core.errors import Conflict, Invalid, NotFound
from harness_common.core.ids import encode
from harness_common.core.run import Status
from harness_common.core.schedule import At, CatchUp, Cron, Every, Overlap, coming, fires_at
from harness_common.firing import MAX_WAITING, fire_due, trigger
from harness_common.settings import SchedulerSettings, Settings
from harness_common.store.audit import Actor
from harness_common.store.db import Database
from harness_common.store.schedules import (
    Definition,
    change_schedule,
    create_schedule,
    definition_from_json,
    delete_schedule,
    list_firings,
    pause_schedule,
    read_schedule,
    resume_schedule,
)
from harness_common.store.skills import put_skill
from harness_worker.scheduler.cron import CronLoop
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.service import look_once
from tests.store.play import Play, make_tenant, make_worker, say, sql

ME = Actor("me")
HOUR = timedelta(hours=1)


class Rings:
    """Keeps what was rung, and what was published."""

    def __init__(self) -> None:
        self.rung: list[UUID] = []
        self.published: list[str] = []

    def ring(self, bell: Any) -> None:
        self.rung.append(bell.run_id)

    async def publish(self, name: str, body: bytes) -> None:
        del body
        self.published.append(name)


async def share(db: Database, *, batch: int = 200) -> Any:
    """Become leader; `bell` and `redis` of what loops share keep what they were given."""
    term = await Leadership(db, uuid4(), "test", 60.0).seek()
    assert term is not None
    config = Settings(scheduler=SchedulerSettings(batch=batch))
    rings: Any = Rings()
    return Shared(config, db, rings, rings, rings, term)


@pytest.fixture
async def shared(db) -> Any:
    return await share(db)


async def tick(shared: Shared) -> int:
    return await CronLoop(shared).run_once(await look_once(shared))


async def make(play: Play, when: Any = None, name: str = "s", **more: Any) -> UUID:
    """Make a schedule of agent `a`; by default every hour, half an hour from now."""
    run = {"agent": "a", "input": "go {scheduled_at}"} | more.pop("run", {})

    def wanted(now: datetime) -> Definition:
        return Definition(when or Every(3600, now - HOUR / 2), run, **{"window_s": 7200, **more})

    row = await create_schedule(play.db, play.tenant_id, name, wanted, paused=False, actor=ME)
    found: UUID = row["id"]
    return found


async def later(play: Play, schedule_id: UUID, **ago: float) -> list[datetime]:
    """Let a scheduler look for the last time so long ago; return the times since then."""
    row = await row_of(play, schedule_id)
    plan = definition_from_json(row["spec"]).plan(schedule_id)
    last = row["now"] - timedelta(**ago)
    times = []
    for at in coming(plan, last):
        if fires_at(plan, at) > row["now"]:
            break
        times.append(at)
    await sql(
        play.db,
        "UPDATE schedules SET last_at = :l, next_at = :n WHERE id = :i",
        l=last,
        n=times[0] if times else None,
        i=schedule_id,
    )
    return times


async def row_of(play: Play, schedule_id: UUID) -> dict[str, Any]:
    return await read_schedule(play.db, play.tenant_id, encode("schedule", schedule_id))


async def firings(play: Play, schedule_id: UUID) -> list[dict[str, Any]]:
    """Return the firings, oldest first."""
    ref = encode("schedule", schedule_id)
    return (await list_firings(play.db, play.tenant_id, ref, before=None, limit=500))[::-1]


async def outcomes(play: Play, schedule_id: UUID) -> list[str]:
    return [f["outcome"] for f in await firings(play, schedule_id)]


async def runs(play: Play) -> list[dict[str, Any]]:
    return await sql(
        play.db, "SELECT * FROM runs WHERE tenant_id = :t ORDER BY id", t=play.tenant_id
    )


async def fire_once(play: Play, shared: Shared, schedule_id: UUID) -> UUID:
    """Let an hour pass and fire; return the run."""
    await sql(play.db, "UPDATE schedule_firings SET at = at - interval '1 hour'")
    await later(play, schedule_id, hours=1)
    assert await tick(shared) == 1
    found: UUID = (await firings(play, schedule_id))[-1]["run_id"]
    return found


# ── one firing, one run ──────────────────────────────────────────────────────────────────────────


async def test_a_time_that_has_come_becomes_a_run(play, shared):
    schedule_id = await make(play, name="hourly", run={"priority": 2, "tags": {"team": "x"}})
    assert await tick(shared) == 0, "it is not due yet"
    (at,) = await later(play, schedule_id, hours=1)
    assert await tick(shared) == 1
    (run,) = await runs(play)
    (firing,) = await firings(play, schedule_id)
    assert (firing["at"], firing["outcome"], firing["run_id"]) == (at, "started", run["id"])
    assert run["input"] == f"go {at.isoformat().replace('+00:00', 'Z')}"
    assert run["tags"] == {"team": "x", "schedule": "hourly"}
    assert (run["priority"], run["created_by"]) == (2, encode("schedule", schedule_id))
    assert shared.bell.rung == [run["id"]]
    row = await row_of(play, schedule_id)
    assert (row["last_at"], row["next_at"], row["firings"]) == (at, at + HOUR, 1)
    assert await tick(shared) == 0
    await play.step(run["id"], say())
    await play.check_whole(run["id"])


async def test_a_schedule_names_skills_and_each_run_pins_their_newest_version(play, shared):
    spec = SkillSpec(description="How to audit.", prompt="Add twice.")
    await put_skill(play.db, play.tenant_id, "audit", spec, ME)
    asked = ScheduleCreate.model_validate(
        {
            "name": "s",
            "when": {"every_s": 3600},
            "run": {"agent": "a", "input": "go", "skills": ["audit"]},
        }
    )
    schedule_id = await make(play, run=plain_run(asked.run))
    first = await fire_once(play, shared, schedule_id)
    await play.step(first, say())
    newer = SkillSpec(description="How to audit.", prompt="Add thrice.")
    await put_skill(play.db, play.tenant_id, "audit", newer, ME)
    second = await fire_once(play, shared, schedule_id)
    pins = [pins_in((await play.read(run_id)).overrides) for run_id in (first, second)]
    assert pins == [(Pin("audit", 1, True),), (Pin("audit", 2, True),)]


async def test_the_look_tells_when_the_next_firing_is(play, shared):
    assert (await look_once(shared)).fire_in_s is None
    await make(play)
    look = await look_once(shared)
    assert look.fire_in_s is not None
    assert 0 < look.fire_in_s <= 3600


async def test_many_loops_at_once_fire_each_time_once(play, db, shared):
    ids = [await make(play, name=f"s{n}", overlap=Overlap.ALLOW) for n in range(6)]
    for schedule_id in ids:
        await later(play, schedule_id, hours=1)
    await asyncio.gather(*(tick(shared) for _ in range(4)))
    seen = await sql(
        db, "SELECT schedule_id, at, count(*) AS n FROM schedule_firings GROUP BY 1, 2"
    )
    (count,) = await sql(db, "SELECT count(*) AS n FROM runs")
    assert len(seen) == 6
    assert {s["n"] for s in seen} == {1}
    assert count["n"] == len(seen), "every run belongs to a firing of its own"


async def test_a_time_that_was_decided_before_makes_no_second_run(play, shared):
    """The key of the firing holds even when the schedule's own memory is set back."""
    schedule_id = await make(play)
    await later(play, schedule_id, hours=1)
    await tick(shared)
    (first,) = await later(play, schedule_id, hours=1)
    await tick(shared)
    assert len(await runs(play)) == 1
    assert await outcomes(play, schedule_id) == ["started"]
    row = await row_of(play, schedule_id)
    assert (row["last_at"], row["next_at"]) == (first, first + HOUR), "it goes on"
    assert await play.running() == 1


async def test_an_old_leader_fires_nothing(play, db):
    """INV12."""
    old = await share(db)
    schedule_id = await make(play)
    await later(play, schedule_id, hours=1)
    await sql(db, "UPDATE leader SET until = clock_timestamp() - interval '1 ms'")
    await share(db)
    with pytest.raises(Conflict):
        await tick(old)
    assert await runs(play) == []
    assert await firings(play, schedule_id) == []


async def test_a_run_that_finds_no_room_waits_in_the_queue(db):
    play = Play(db, await make_tenant(db, granted=0))
    shared = await share(db)
    schedule_id = await make(play)
    await later(play, schedule_id, hours=1)
    assert await tick(shared) == 1
    assert [r["status"] for r in await runs(play)] == ["queued"]
    assert shared.bell.rung == []


async def test_a_tenant_with_many_does_not_go_before_the_others_few(db):
    hot, few = Play(db, await make_tenant(db)), Play(db, await make_tenant(db))
    shared = await share(db, batch=4)
    for n in range(8):
        await later(hot, await make(hot, name=f"s{n}"), hours=1)
    await later(few, await make(few), hours=1)
    await tick(shared)
    assert len(await runs(few)) == 1


# ── overlap ──────────────────────────────────────────────────────────────────────────────────────


async def test_skip(play, shared):
    schedule_id = await make(play)
    first = await fire_once(play, shared, schedule_id)
    await fire_once(play, shared, schedule_id)
    skipped = (await firings(play, schedule_id))[-1]
    assert (skipped["outcome"], skipped["run_id"]) == ("skipped", None)
    assert skipped["detail"]["reason"] == f"{encode('run', first)} is not over"
    await play.step(first, say())
    assert await fire_once(play, shared, schedule_id) is not None
    assert (await row_of(play, schedule_id))["firings"] == 2


async def test_allow(play, shared):
    schedule_id = await make(play, overlap=Overlap.ALLOW)
    made = {await fire_once(play, shared, schedule_id) for _ in range(3)}
    assert len(made) == 3
    assert await play.running() == 3
    assert set((await row_of(play, schedule_id))["open_runs"]) == made


async def test_skip_sees_every_run_that_is_going_not_only_the_newest(play, shared):
    schedule_id = await make(play, overlap=Overlap.ALLOW)
    older, newer = [await fire_once(play, shared, schedule_id) for _ in range(2)]
    await play.step(newer, say())
    ref = encode("schedule", schedule_id)
    await change_schedule(
        play.db, play.tenant_id, ref, lambda d, _: replace(d, overlap=Overlap.SKIP), ME
    )
    assert await fire_once(play, shared, schedule_id) is None
    await play.step(older, say())
    assert await fire_once(play, shared, schedule_id) is not None


async def test_enqueue_starts_each_after_the_one_before(play, shared):
    schedule_id = await make(play, overlap=Overlap.ENQUEUE)
    first = await fire_once(play, shared, schedule_id)
    await fire_once(play, shared, schedule_id)
    await fire_once(play, shared, schedule_id)
    assert await outcomes(play, schedule_id) == ["started", "waiting", "waiting"]
    await sql(play.db, "UPDATE schedules SET next_at = clock_timestamp() + interval '1 hour'")
    assert ((await look_once(shared)).fire_in_s or 0) > 1, "nothing can be done yet"
    assert await tick(shared) == 0
    await play.step(first, say())
    look = await look_once(shared)
    assert look.fire_in_s is not None
    assert look.fire_in_s <= 0
    assert await tick(shared) == 1
    assert await outcomes(play, schedule_id) == ["started", "started", "waiting"]
    second = (await firings(play, schedule_id))[1]
    (run,) = [r for r in await runs(play) if r["id"] == second["run_id"]]
    assert run["input"] == f"go {second['at'].isoformat().replace('+00:00', 'Z')}"
    assert await tick(shared) == 0
    await play.step(run["id"], say())
    assert await tick(shared) == 1
    row = await row_of(play, schedule_id)
    assert (row["waiting"], row["firings"]) == (0, 3)


async def test_what_waits_is_bounded(play, db, shared):
    schedule_id = await make(play, overlap=Overlap.ENQUEUE)
    await fire_once(play, shared, schedule_id)
    await sql(db, "UPDATE schedules SET waiting = :n", n=MAX_WAITING)
    await fire_once(play, shared, schedule_id)
    skipped = (await firings(play, schedule_id))[-1]
    assert (skipped["outcome"], skipped["detail"]["reason"]) == (
        "skipped",
        f"{MAX_WAITING} firings wait already",
    )


async def test_cancel_previous_stops_what_is_going_and_starts(play, db, shared):
    schedule_id = await make(play, overlap=Overlap.CANCEL_PREVIOUS)
    first = await fire_once(play, shared, schedule_id)
    worker = await make_worker(db)
    await play.claim(first, worker)
    second = await fire_once(play, shared, schedule_id)
    assert second not in {None, first}
    assert (await play.read(first)).state.cancel_requested
    assert [name.split(":")[-1] for name in shared.redis.published] == [worker.hex]
    third = await fire_once(play, shared, schedule_id)
    assert (await play.read(second)).state.status is Status.CANCELLED, "nobody owned it"
    assert (await play.read(third)).state.status is Status.RUNNING
    assert await outcomes(play, schedule_id) == ["started"] * 3
    await play.check_whole(second)


# ── catching up ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("catch_up", "window_s", "expected"),
    [
        (CatchUp.NONE, 60, ["missed"]),
        (CatchUp.LAST, 60, ["missed"]),
        (CatchUp.LAST, 7200, ["missed", "started"]),
        (CatchUp.ALL, 86_400, ["started"] * 5),
    ],
)
async def test_after_an_outage(play, shared, catch_up, window_s, expected):
    schedule_id = await make(play, overlap=Overlap.ALLOW, catch_up=catch_up, window_s=window_s)
    times = await later(play, schedule_id, hours=5)
    assert len(times) == 5
    assert await tick(shared) == len(expected)
    assert await outcomes(play, schedule_id) == expected
    found = await firings(play, schedule_id)
    assert found[0]["at"] == times[0]
    if expected[-1] == "started":
        assert found[-1]["at"] == times[-1]
    else:
        limit = "10 s" if catch_up is CatchUp.NONE else "60 s"
        assert f"more than {limit}" in found[0]["detail"]["reason"]
        assert datetime.fromisoformat(found[0]["detail"]["until"]) == times[-1]
    row = await row_of(play, schedule_id)
    assert (row["last_at"], row["next_at"]) == (times[-1], times[-1] + HOUR)
    assert await tick(shared) == 0


async def test_a_month_of_half_minutes_is_one_record_and_one_run(play, shared):
    schedule_id = await make(play, Every(30.0, datetime(2026, 1, 1, tzinfo=UTC)), window_s=60)
    (row,) = await sql(play.db, "SELECT clock_timestamp() - interval '30 days' AS at")
    await sql(play.db, "UPDATE schedules SET last_at = :a, next_at = :a", a=row["at"])
    assert await CronLoop(shared).run_once(await look_once(shared)) == 2
    assert await outcomes(play, schedule_id) == ["missed", "started"]
    assert (await firings(play, schedule_id))[0]["at"] < row["at"] + timedelta(seconds=30)


# ── jitter, bounds, once ─────────────────────────────────────────────────────────────────────────


async def test_jitter_puts_a_firing_off_by_the_same_in_every_process(play, shared):
    schedule_id = await make(play, jitter_s=600)
    row = await row_of(play, schedule_id)
    at = row["last_at"] + HOUR / 2
    delay = row["next_at"] - at
    assert timedelta(0) < delay <= timedelta(seconds=600)
    plan = definition_from_json(row["spec"]).plan(schedule_id)
    assert fires_at(plan, at) == row["next_at"]
    (early, late) = await later(play, schedule_id, hours=2)
    await sql(play.db, "UPDATE schedules SET last_at = :e, next_at = :l", e=early, l=late)
    assert await tick(shared) == 1, "its nominal time is over, and so is its jitter"
    assert [f["at"] for f in await firings(play, schedule_id)] == [late]


async def test_at_fires_once_and_is_over(play, shared):
    now = (await row_of(play, await make(play, name="clock")))["now"]
    schedule_id = await make(play, At(now + HOUR))
    at = now - timedelta(seconds=5)
    await sql(
        play.db,
        "UPDATE schedules SET last_at = :l, next_at = :a, "
        "spec = jsonb_set(spec, '{when,at}', to_jsonb(cast(:t AS text))) WHERE id = :i",
        l=at - HOUR,
        a=at,
        t=at.isoformat(),
        i=schedule_id,
    )
    assert await tick(shared) == 1
    assert await tick(shared) == 0
    assert (await row_of(play, schedule_id))["next_at"] is None
    assert await outcomes(play, schedule_id) == ["started"]


async def test_max_firings(play, shared):
    schedule_id = await make(play, overlap=Overlap.ALLOW, max_firings=2)
    await fire_once(play, shared, schedule_id)
    assert (await row_of(play, schedule_id))["next_at"] is not None
    await fire_once(play, shared, schedule_id)
    assert (await row_of(play, schedule_id))["next_at"] is None
    assert await tick(shared) == 0


async def test_what_could_never_fire_is_refused(play):
    past = datetime(2020, 1, 1, tzinfo=UTC)
    with pytest.raises(Invalid, match="which is over"):
        await make(play, At(past))
    with pytest.raises(Invalid, match="never fire"):
        await make(play, ends_at=past)
    with pytest.raises(Invalid, match="starts_at is later"):
        await make(play, starts_at=past + HOUR, ends_at=past)
    assert await sql(play.db, "SELECT id FROM schedules") == []


# ── pause, resume, change, delete, trigger ───────────────────────────────────────────────────────


async def test_a_paused_schedule_fires_nothing_and_drops_what_fell_into_the_pause(play, shared):
    schedule_id = await make(play, window_s=86_400, catch_up=CatchUp.ALL)
    ref = encode("schedule", schedule_id)
    await pause_schedule(play.db, play.tenant_id, ref, "holiday", ME)
    row = await row_of(play, schedule_id)
    assert (row["pause_reason"], row["next_at"]) == ("holiday", None)
    await sql(play.db, "UPDATE schedules SET last_at = last_at - interval '5 hours'")
    assert await tick(shared) == 0
    resumed = await resume_schedule(play.db, play.tenant_id, ref, ME)
    assert resumed["next_at"] > resumed["now"]
    assert await tick(shared) == 0
    assert await runs(play) == []
    rows = await sql(play.db, "SELECT action FROM audit ORDER BY id")
    assert [r["action"] for r in rows] == ["schedule.create", "schedule.pause", "schedule.resume"]


async def test_what_waits_stays_waiting_through_a_pause(play, shared):
    schedule_id = await make(play, overlap=Overlap.ENQUEUE)
    first = await fire_once(play, shared, schedule_id)
    await fire_once(play, shared, schedule_id)
    ref = encode("schedule", schedule_id)
    await pause_schedule(play.db, play.tenant_id, ref, "", ME)
    await play.step(first, say())
    assert (await look_once(shared)).fire_in_s is None
    assert await tick(shared) == 0
    late = await fire_due(play.db, play.tenant_id, schedule_id, shared.check_term)
    assert late is None, "it was paused after it had been found due"
    await resume_schedule(play.db, play.tenant_id, ref, ME)
    assert await tick(shared) >= 1
    assert (await outcomes(play, schedule_id))[1] == "started"


async def test_new_times_count_from_now_and_other_changes_lose_nothing(play, shared):
    schedule_id = await make(play)
    ref = encode("schedule", schedule_id)
    await later(play, schedule_id, hours=1)
    other = {"agent": "a", "input": "other"}
    await change_schedule(play.db, play.tenant_id, ref, lambda d, _: replace(d, run=other), ME)
    assert await tick(shared) == 1
    assert [r["input"] for r in await runs(play)] == ["other"]
    await later(play, schedule_id, hours=1)
    every = Cron("*/10 * * * *", "Europe/Berlin")
    changed = await change_schedule(
        play.db, play.tenant_id, ref, lambda d, _: replace(d, when=every), ME
    )
    assert changed["next_at"] > changed["now"]
    assert await tick(shared) == 0


async def test_trigger_fires_now_and_leaves_the_times_alone(play, shared):
    schedule_id = await make(play)
    before = await row_of(play, schedule_id)
    await pause_schedule(play.db, play.tenant_id, "s", "", ME)
    fired = await trigger(play.db, play.tenant_id, schedule_id, overlap=None, actor=ME)
    assert fired.outcome == "started"
    (run,) = await runs(play)
    assert (run["created_by"], run["tags"]) == ("me", {"schedule": "s"})
    again = await trigger(play.db, play.tenant_id, schedule_id, overlap=None, actor=ME)
    assert (again.outcome, again.run) == ("skipped", None)
    third = await trigger(play.db, play.tenant_id, schedule_id, overlap=Overlap.ALLOW, actor=ME)
    assert third.run is not None
    after = await row_of(play, schedule_id)
    assert (after["last_at"], after["firings"]) == (before["last_at"], 0)
    assert [f["detail"]["by"] for f in await firings(play, schedule_id)] == ["me"] * 3
    with pytest.raises(NotFound):
        await trigger(play.db, play.tenant_id, uuid4(), overlap=None, actor=ME)


async def test_triggers_at_once_are_decided_one_after_the_other(play):
    """Each sees the run that the one before started: the schedule's row lock."""
    schedule_id = await make(play)
    fired = await asyncio.gather(
        *(trigger(play.db, play.tenant_id, schedule_id, overlap=None, actor=ME) for _ in range(6))
    )
    assert sorted(f.outcome for f in fired) == ["skipped"] * 5 + ["started"]
    assert len(await runs(play)) == 1


async def test_old_firings_are_forgotten_and_waiting_ones_are_not(play, db, shared):
    schedule_id = await make(play, overlap=Overlap.ENQUEUE)
    for _ in range(3):
        await fire_once(play, shared, schedule_id)
    await sql(
        db,
        "UPDATE schedule_firings SET created_at = created_at - interval '91 days' "
        "WHERE at < (SELECT max(at) FROM schedule_firings)",
    )
    params = {"key_ttl_s": 1.0, "firings_days": 90, "term": shared.term, "most": 100}
    row = await db.fetch_one("prune", params)
    assert row is not None
    assert row["firings"] == 1
    assert await outcomes(play, schedule_id) == ["waiting", "waiting"]


async def test_delete_takes_the_firings_and_leaves_the_runs(play, shared):
    schedule_id = await make(play)
    await fire_once(play, shared, schedule_id)
    await delete_schedule(play.db, play.tenant_id, "s", ME)
    assert await sql(play.db, "SELECT at FROM schedule_firings") == []
    assert len(await runs(play)) == 1
    assert await tick(shared) == 0
    with pytest.raises(NotFound):
        await read_schedule(play.db, play.tenant_id, "s")


# ── what cannot fire ─────────────────────────────────────────────────────────────────────────────


async def test_a_schedule_whose_agent_is_gone_is_recorded_and_holds_up_nobody(play, db, shared):
    await sql(
        db,
        "INSERT INTO agents (tenant_id, name, version, spec, digest, created_by) SELECT "
        "tenant_id, 'gone', 1, spec, '', '' FROM agents WHERE tenant_id = :t",
        t=play.tenant_id,
    )
    lost = await make(play, name="lost", run={"agent": "gone"})
    fine = await make(play, name="fine")
    await sql(db, "DELETE FROM agents WHERE name = 'gone'")
    await later(play, lost, hours=1)
    await later(play, fine, hours=1)
    assert await tick(shared) == 2
    (firing,) = await firings(play, lost)
    assert firing["outcome"] == "failed"
    assert "no agent 'gone'" in firing["detail"]["reason"]
    assert await outcomes(play, fine) == ["started"]
    row = await row_of(play, lost)
    assert row["firings"] == 0
    assert row["next_at"] == firing["at"] + HOUR, "it is tried at its next time"


async def test_a_schedule_that_cannot_be_read_is_put_off_and_holds_up_nobody(play, db, shared):
    """A newer version may write what this one does not know (INV15)."""
    odd, fine = await make(play, name="odd"), await make(play, name="fine")
    await later(play, odd, hours=1)
    await later(play, fine, hours=1)
    await sql(db, "UPDATE schedules SET spec = '{\"moon\": 1}' WHERE id = :i", i=odd)
    assert await tick(shared) == 1
    assert await outcomes(play, fine) == ["started"]
    (row,) = await sql(
        db,
        "SELECT next_at > clock_timestamp() + interval '50 s' AS off FROM schedules WHERE id = :i",
        i=odd,
    )
    assert row["off"]


async def test_a_firing_that_waits_and_cannot_be_decided_about_is_put_off_as_well(play, db, shared):
    """It is due whatever its schedule's next time is: it would be looked at in every round."""
    odd = await make(play, overlap=Overlap.ENQUEUE)
    first = await fire_once(play, shared, odd)
    await fire_once(play, shared, odd)
    await sql(
        db,
        "UPDATE schedules SET next_at = clock_timestamp() + interval '1 hour', "
        "spec = jsonb_set(spec, '{overlap}', to_jsonb(cast('moon' AS text)))",
    )
    await play.step(first, say())
    cron = CronLoop(shared)
    for _ in range(3):
        await cron.run_once(await look_once(shared))
    assert shared.counts["schedules_deferred"] == 1
    cron._later = dict.fromkeys(cron._later, 0.0)
    spec = "jsonb_set(spec, '{overlap}', to_jsonb(cast('enqueue' AS text)))"
    await sql(db, f"UPDATE schedules SET spec = {spec}")
    assert await cron.run_once(await look_once(shared)) == 1
    assert await outcomes(play, odd) == ["started", "started"]


async def test_a_session_has_one_run_at_a_time(play, db, shared):
    first = await play.start()
    session = encode("session", (await play.read(first)).session_id)
    with pytest.raises(Invalid, match="one run at a time"):
        await make(play, run={"session_id": session}, overlap=Overlap.ALLOW)
    schedule_id = await make(play, run={"session_id": session})
    await fire_once(play, shared, schedule_id)
    assert await outcomes(play, schedule_id) == ["skipped"], "somebody else's run is going"
    await play.step(first, say())
    made = await fire_once(play, shared, schedule_id)
    assert (await play.read(made)).prev_run_id == first
    await play.step(made, say())
    await sql(db, "UPDATE sessions SET closed_at = clock_timestamp()")
    await fire_once(play, shared, schedule_id)
    closed = (await firings(play, schedule_id))[-1]
    assert (closed["outcome"], closed["detail"]["reason"]) == (
        "failed",
        "the session is closed; start a new one",
    )
