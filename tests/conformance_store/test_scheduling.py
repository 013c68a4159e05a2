"""The scheduler's duties: one leader, deaths, lost doorbells, throttles, breakers."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from uuid import uuid4

import pytest

from harness_common.commands import Parent, StartRun, cancel_run, start_run
from harness_common.core.errors import Conflict
from harness_common.core.inputs import StepDone
from harness_common.core.run import Status
from harness_common.core.step import CallOutcome, ToolsWaiting, Wait
from harness_common.core.tool_call import CallStatus
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.cancel import CancelLoop
from harness_worker.scheduler.dispatch import DispatchLoop
from harness_worker.scheduler.leader import Leadership
from harness_worker.scheduler.looper import Loop
from harness_worker.scheduler.reap import ReapLoop
from harness_worker.scheduler.wake import WakeLoop
from harness_worker.throttles import Throttles
from tests.conformance_store.board import tick_all
from tests.store.play import WHEN, say


async def test_of_many_schedulers_one_leads_and_the_next_has_a_higher_term(play):
    rivals = [Leadership(play.db, uuid4(), f"s{n}", 60) for n in range(4)]
    terms = await asyncio.gather(*(r.seek() for r in rivals))
    (first,) = [t for t in terms if t is not None]
    leader = rivals[terms.index(first)]
    assert await leader.seek() == first
    await leader.resign()
    others = [r for r in rivals if r is not leader]
    assert await others[0].seek() == first + 1
    assert await leader.seek() is None


async def test_a_deposed_leader_writes_nothing(play):
    shared = await play.shared()
    run_id = await play.start()
    await play.step(run_id, say(tools=["look"]))
    shared.term -= 1
    with pytest.raises(Conflict, match="another scheduler leads"):
        async with play.db.transaction() as conn:
            await shared.led(conn, "slots_lock", {"tenant_id": play.tenant_id})
    assert await play.db.fetch("ring_all", {"term": shared.term}) == []


async def test_a_dead_process_gives_its_runs_back(play):
    run_id = await play.start()
    dead = await play.register(uuid4())
    run = await play.claim(run_id, dead)
    shared = await play.shared()
    assert await tick_all(shared, [ReapLoop(shared)]) == 0, "it lives"
    params = {
        "worker": dead, "why": "killed", "only_if_silent": False, "silent_s": 1.0,
        "looked_at": None, "term": shared.term,
    }  # fmt: skip
    assert (await play.db.fetch("worker_died", params))[0]["died"] == 1
    assert (await play.db.fetch("worker_died", params))[0]["died"] == 0
    await tick_all(shared, [ReapLoop(shared)])
    after = await play.read(run_id)
    assert after.claim_id is None
    assert after.state.status is Status.RUNNING
    assert shared.bell.rung[-1].run_id == run_id
    assert await play.apply(run, StepDone(say(), WHEN), owner=True) is None
    await play.step(run_id, say())
    await play.check_whole(run_id)


async def test_silence_counts_only_for_whom_it_looked_lately(play):
    worker = await play.register(uuid4())
    now = await play.now()
    params = {"worker": worker, "why": "silent", "only_if_silent": True, "term": None}
    for silent_s, looked_at, died in (
        (3600.0, now, 0),  # not silent for so long
        (0.0, now - timedelta(seconds=60), 0),  # whoever looked was frozen since
    ):
        more = {"silent_s": silent_s, "looked_at": looked_at}
        assert (await play.db.fetch("worker_died", params | more))[0]["died"] == died


async def test_a_heartbeat_tells_what_to_stop_and_what_is_not_known(play):
    run_id, lost = await play.start(), await play.start()
    run = await play.claim(run_id)
    await play.claim(lost)
    await cancel_run(play.db, play.tenant_id, run_id, by="ann")
    params = {
        "worker": play.worker, "held": 1, "claims": [run.claim_id], "queue_age_s": 0.0,
        "sandbox": None, "orphan_after_s": -1.0, "throttle_ends_after_s": 60.0,
    }  # fmt: skip
    rows = await play.db.fetch("heartbeat", params)
    own = [r for r in rows if r["run_id"] is None]
    assert len(own) == 1
    assert own[0]["condemned"] is False
    told = {r["run_id"]: r["cancel_requested"] for r in rows if r["run_id"] is not None}
    assert told == {run_id: True, lost: False}
    assert await play.db.fetch("heartbeat", params | {"worker": uuid4()}) == []


async def test_a_doorbell_that_nobody_answers_is_rung_again(play):
    run_id = await play.start()
    shared = await play.shared()
    assert await tick_all(shared, [DispatchLoop(shared)]) == 0
    assert len(await play.db.fetch("ring_all", {"term": shared.term})) == 1
    await tick_all(shared, [DispatchLoop(shared)])
    (bell,) = shared.bell.rung
    assert (bell.run_id, bell.version, bell.ring) == (run_id, 1, 1)
    (look,) = await play.db.fetch("look", {"lease_s": 60.0})
    assert look["due_in_s"] > 1


async def test_a_process_that_leaves_lets_its_queue_be_rung_again(play):
    await play.start()
    await play.db.fetch("worker_leave", {"worker": play.worker})
    (look,) = await play.db.fetch("look", {"lease_s": 60.0})
    assert look["due_in_s"] <= 0
    assert await play.db.fetch("workers_alive", {}) == []


async def test_a_parent_waits_for_its_children_and_goes_on(play):
    parent = await play.start()
    await play.step(parent, say(tools=["spawn_run"] * 2))
    children = [
        await start_run(
            play.db, play.tenant_id, StartRun("a", f"part {n}", parent=Parent(parent, 2, n, 1))
        )
        for n in range(2)
    ]
    waits = tuple(
        CallOutcome(
            n, f"call_{n}", "spawn_run", CallStatus.RUNNING, "child", effect="idempotent",
            wait=Wait(n, "child", None, {"run": "x", "agent": "a"}),
        )
        for n in range(2)
    )  # fmt: skip
    await play.step(parent, ToolsWaiting(waits))
    assert await play.status(parent) is Status.WAITING_CHILDREN
    shared = await play.shared()
    loops: list[Loop] = [CancelLoop(shared), WakeLoop(shared), AdmitLoop(shared)]
    for child in children:
        await tick_all(shared, loops)
        assert await play.status(parent) is Status.WAITING_CHILDREN
        await play.step(child.run_id, say("done"))
    await tick_all(shared, loops)
    assert await play.status(parent) is Status.RUNNING
    await play.check_whole(parent)


async def test_the_end_of_a_parent_stops_its_children(play):
    parent = await play.start()
    await play.step(parent, say(tools=["spawn_run"]))
    request = StartRun("a", "part", parent=Parent(parent, 2, 0, 1))
    child = await start_run(play.db, play.tenant_id, request)
    await cancel_run(play.db, play.tenant_id, parent, by="ann")
    shared = await play.shared()
    await tick_all(shared, [CancelLoop(shared)])
    assert await play.status(child.run_id) is Status.CANCELLED


# ── limits of others ─────────────────────────────────────────────────────────────────────────────


def hit(**changed):
    """Build a refusal of a provider."""
    return {
        "scope": "p:m:c", "wait_s": 30.0, "per_s": None, "code": "RATE", "reason": "slow down",
        "hits": 1, "start_s": 1.0, "min_s": 0.01, "max_s": 60.0, "slack": 1.1, "slower": 2.0,
        "slower_known": 1.5,
    } | changed  # fmt: skip


async def test_a_throttle_holds_for_all_and_is_never_shortened(play):
    now = await play.now()
    (first,) = await play.db.fetch("throttle_hit", hit(called_at=now))
    (second,) = await play.db.fetch("throttle_hit", hit(called_at=now, wait_s=1.0))
    assert second["until"] == first["until"], "never shortened"
    assert (first["hits"], second["hits"]) == (1, 1), "made before the pause: the same refusal"
    late = first["until"] + timedelta(seconds=1)
    (third,) = await play.db.fetch("throttle_hit", hit(called_at=late, wait_s=90.0))
    assert third["hits"] == 2
    assert third["interval_s"] == 2 * first["interval_s"], "it was too fast"
    throttles = Throttles(play.db, None, lambda: now)
    await throttles.look()
    (live,) = await play.db.fetch("throttles_live", {"ends_after_s": 60.0})
    assert live["until"] == third["until"]


async def test_a_throttle_ends_some_time_after_its_last_slot(play):
    now = await play.now()
    await play.db.fetch("throttle_hit", hit(called_at=now, wait_s=0.0))
    params = {
        "worker": play.worker, "held": 0, "claims": [], "queue_age_s": 0.0, "sandbox": None,
        "orphan_after_s": 60.0, "throttle_ends_after_s": 60.0,
    }  # fmt: skip
    (own,) = await play.db.fetch("heartbeat", params)
    assert [t["scope"] for t in own["throttles"]] == ["p:m:c"]
    (own,) = await play.db.fetch("heartbeat", params | {"throttle_ends_after_s": -60.0})
    assert own["throttles"] in (None, [])
    assert await play.db.fetch("throttles_live", {"ends_after_s": 60.0}) == []


async def test_slots_of_a_throttled_scope_are_dealt_once_one_interval_apart(play):
    now = await play.now()
    await play.db.fetch("throttle_hit", hit(called_at=now, per_s=2.0))
    ask = {
        "scope": "p:m:c", "n": 3, "horizon_s": 60.0, "worked": 0, "min_s": 0.01, "slack": 1.1,
        "faster": 0.9,
    }  # fmt: skip
    dealt = [(await play.db.fetch("throttle_reserve", ask))[0] for _ in range(3)]
    assert [d["dealt"] for d in dealt] == [3, 3, 3]
    gaps = [(b["first"] - a["first"]).total_seconds() for a, b in pairwise(dealt)]
    assert gaps == [pytest.approx(3 * 0.55, abs=0.01)] * 2
    (over,) = await play.db.fetch("throttle_reserve", ask | {"n": 1000})
    assert over["dealt"] < 1000, "none beyond the horizon"
    assert await play.db.fetch("throttle_reserve", ask | {"scope": "other"}) == []


async def test_a_breaker_opens_and_one_probe_closes_it(play):
    fault = {
        "tool": "look", "failures": 2, "successes": 0, "probe_id": None, "reason": "down",
        "limit": 5, "share": 0.5, "window_s": 30.0, "open_s": 0.0, "open_max_s": 300.0,
    }  # fmt: skip
    seen = [(await play.statement("breaker_fail", token=uuid4(), **fault))[0] for _ in range(3)]
    assert [(s["state"], s["opened"]) for s in seen] == [
        ("closed", False), ("closed", False), ("open", True)
    ]  # fmt: skip
    probes = [uuid4(), uuid4()]
    asked = [
        (await play.statement("breaker_probe", tool="look", probe_id=p, hold_s=60.0))[0]
        for p in probes
    ]
    assert [a["mine"] for a in asked] == [True, False]
    assert await play.statement("breaker_close", tool="look", probe_id=probes[1]) == []
    assert len(await play.statement("breaker_close", tool="look", probe_id=probes[0])) == 1
    assert await play.db.fetch("breakers_live", {}) == []
    well = {"failures": 2, "successes": 1000, "token": uuid4()}
    (row,) = [(await play.statement("breaker_fail", **fault | well))[0] for _ in range(1)]
    assert row["state"] == "closed"


async def test_a_failed_probe_keeps_the_breaker_open_for_longer(play):
    fault = {
        "tool": "look", "failures": 9, "successes": 0, "reason": "down", "limit": 5,
        "share": 0.5, "window_s": 30.0, "open_s": 0.0, "open_max_s": 300.0,
    }  # fmt: skip
    (opened,) = await play.statement("breaker_fail", token=uuid4(), probe_id=None, **fault)
    probe = uuid4()
    await play.statement("breaker_probe", tool="look", probe_id=probe, hold_s=60.0)
    again = fault | {"open_s": 10.0, "failures": 1}
    (row,) = await play.statement("breaker_fail", token=uuid4(), probe_id=probe, **again)
    assert (row["state"], row["opened"], row["probe_until"]) == ("open", True, None)
    assert (row["until"] - opened["until"]).total_seconds() > 15, "twice as long"
