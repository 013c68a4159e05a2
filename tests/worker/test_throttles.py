"""One refusal holds back every process; each run gets a slot of its own; nobody is early."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import httpx
import pytest

from harness_common.contracts.model import ChatRequest
from harness_common.core.errors import Limited, Permanent
from harness_common.core.throttle import FASTER, NO_SLOT, Permit, Rate
from harness_common.store.db import Database
from harness_worker.advance import answer
from harness_worker.heartbeat import beat
from harness_worker.models.openai_chat import OpenAIChat
from harness_worker.models.prices import load_prices
from harness_worker.runtime import PgClock, Runtime
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.service import look_once, make_loops
from harness_worker.throttles import Throttles
from tests.fakes.openai_server import FakeOpenAI, refusal
from tests.fakes.rate_gate import SENT, RateGate
from tests.store.play import Play, sql
from tests.worker.runtime import make_runtime, make_shared

SCOPE = "openai:m:abc"


class Wire:
    """The broadcast channel, in memory."""

    def __init__(self) -> None:
        self.listeners: list[Throttles] = []
        self.heard = asyncio.Event()

    async def throttled(self, throttle: Any) -> bool:
        for listener in self.listeners:
            listener.heard(throttle)
        self.heard.set()
        return True


async def a_clock(db: Database) -> PgClock:
    clock = PgClock()
    (row,) = await sql(db, "SELECT clock_timestamp() AS now")
    clock.set(row["now"])
    return clock


async def processes(db: Database, n: int, wire: Wire | None = None) -> list[Throttles]:
    clock = await a_clock(db)
    made = [Throttles(db, wire, clock.now) for _ in range(n)]
    if wire is not None:
        wire.listeners += made
    return made


def limited(seconds: float | None = 1.0, **detail: Any) -> Limited:
    return Limited("slow down", retry_after_s=seconds, scope=SCOPE, **detail)


async def now_of(db: Database) -> datetime:
    (row,) = await sql(db, "SELECT clock_timestamp() AS now")
    found: datetime = row["now"]
    return found


def slot_of(error: Limited) -> datetime:
    assert error.permit is not None
    return datetime.fromisoformat(error.permit["at"])


async def turned_away(one: Throttles, memo: Any = None) -> Limited:
    with pytest.raises(Limited) as caught:
        await one.permit(SCOPE, memo or {})
    return caught.value


async def test_racing_processes_get_slots_of_their_own(db):
    """INV14: no two share a slot, none is before the pause ends, whoever asks and however many."""
    made = await processes(db, 4)
    called_at = await now_of(db)
    hits = [one.refused(limited(2.0), called_at, 0) for one in made for _ in range(25)]
    slots = sorted(slot_of(error) for error in await asyncio.gather(*hits))
    waits = await asyncio.gather(*(turned_away(one) for one in made for _ in range(25)))
    slots = sorted([*slots, *map(slot_of, waits)])
    assert len(slots) == 200
    assert slots[0] >= called_at + timedelta(seconds=2)
    gaps = [(b - a).total_seconds() for a, b in pairwise(slots)]
    assert min(gaps) >= 0.094, "a slot every 0.1 s, less at most a twentieth for jitter"
    (row,) = await sql(db, "SELECT * FROM throttles")
    assert row["hits"] == 1, "calls that were under way together are one hit"
    assert row["interval_s"] == pytest.approx(0.1)


async def test_many_refusals_at_once_are_few_writes(db):
    (one,) = await processes(db, 1)
    now = await now_of(db)
    await asyncio.gather(*(one.refused(limited(), now, 0) for _ in range(1000)))
    assert one._asks.batches <= 4


async def test_a_refusal_is_heard_by_the_others(db):
    wire = Wire()
    first, second = await processes(db, 2, wire)
    await second.permit(SCOPE, {})
    refused = await first.refused(limited(30.0), await now_of(db), 0)
    assert slot_of(await turned_away(second)) > slot_of(refused)


async def test_a_permit_is_honoured_at_its_time_and_void_after_a_new_refusal(db):
    (one,) = await processes(db, 1)
    called_at = await now_of(db)
    mine = await one.refused(limited(0.2), called_at, 0)
    other = await turned_away(one)
    early = await turned_away(one, {"permit": mine.permit})
    assert early.permit == mine.permit, "it does not queue up again"
    await asyncio.sleep(0.5)
    await one.permit(SCOPE, {"permit": mine.permit})
    await one.permit(SCOPE, {"permit": other.permit})
    again = await one.refused(limited(5.0), await now_of(db), 0)
    void = await turned_away(one, {"permit": other.permit})
    assert slot_of(void) > slot_of(again)


async def test_the_pace_slows_with_each_hit_and_follows_the_rate_of_the_provider(db):
    (one,) = await processes(db, 1)
    await one.refused(limited(0.1), await now_of(db), 0)
    await asyncio.sleep(0.3)
    await one.refused(limited(0.1), await now_of(db), 0)
    assert one.live[SCOPE].interval_s == pytest.approx(0.2)
    assert one.live[SCOPE].hits == 2
    await asyncio.sleep(0.3)
    await one.refused(limited(0.1, limit_per_s=2.0), await now_of(db), 0)
    assert one.live[SCOPE].interval_s == pytest.approx(0.55), "a tenth slower than 2 a second"
    for _ in range(10):
        one.worked(SCOPE, None)
    await turned_away(one)
    assert one.live[SCOPE].interval_s == pytest.approx(0.55), "never faster than the rate"


async def test_a_guessed_pace_is_never_slower_than_the_pause_that_the_provider_names(db):
    """Who says "in a second" takes a call by then: a guess of ten seconds would starve all runs."""
    (one,) = await processes(db, 1)
    now = await now_of(db)
    for n in range(12):
        await one.refused(limited(1.0), now + timedelta(seconds=60 * n), 0)
    (row,) = await sql(db, "SELECT interval_s, hits FROM throttles")
    assert (row["interval_s"], row["hits"]) == (1.0, 12)


async def test_success_quickens_a_guessed_pace(db):
    (one,) = await processes(db, 1)
    await one.refused(limited(5.0), await now_of(db), 0)
    for _ in range(10):
        one.worked(SCOPE, None)
    await turned_away(one)
    assert one.live[SCOPE].interval_s == pytest.approx(0.1 * FASTER**10)


async def test_slots_are_given_out_for_five_minutes_only(db):
    """A provider that recovers must not find its callers spread over hours."""
    (one,) = await processes(db, 1)
    refused = await one.refused(limited(5.0, limit_per_s=0.011), await now_of(db), 0)
    waits = await asyncio.gather(*(turned_away(one) for _ in range(10)))
    until = slot_of(refused)
    slots = [slot_of(w) for w in waits if w.permit and w.permit["hits"] != NO_SLOT]
    assert [round((s - until).total_seconds() / 100) for s in slots] == [1, 2]
    none = [slot_of(w) for w in waits if w.permit and w.permit["hits"] == NO_SLOT]
    again = [(at - until).total_seconds() for at in none]
    assert len(again) == 8
    assert all(140 < a <= 300 for a in again)
    assert slot_of(await turned_away(one, {"permit": waits[-1].permit})) > until, "it asks again"


async def test_a_used_up_limit_throttles_before_the_first_refusal(db):
    wire = Wire()
    first, second = await processes(db, 2, wire)
    first.worked(SCOPE, Rate(2.0, used_up=True))
    await asyncio.wait_for(wire.heard.wait(), 10)
    assert (slot_of(await turned_away(second)) - await now_of(db)).total_seconds() > 0.3
    (row,) = await sql(db, "SELECT * FROM throttles")
    assert (row["hits"], row["code"], row["limit_per_s"]) == (0, "USED_UP", 2.0)


async def test_the_heartbeat_brings_throttles_and_takes_them_away(db):
    runtime = await make_runtime(db)
    (other,) = await processes(db, 1)
    await other.refused(limited(5.0), await now_of(db), 0)
    await beat(runtime)
    assert runtime.throttles.live.keys() == {SCOPE}
    await sql(
        db,
        "UPDATE throttles SET until = until - interval '1 hour', "
        "next_at = next_at - interval '1 hour'",
    )
    runtime.throttles.refresh([], await now_of(db))
    assert runtime.throttles.live, "it may be younger than the snapshot"
    runtime.throttles.refresh([], await now_of(db) + timedelta(hours=1))
    await beat(runtime)
    assert not runtime.throttles.live
    assert not await sql(db, "SELECT 1 FROM throttles")


async def test_a_deaf_process_asks_postgres(db):
    """INV14 without Redis: nothing is heard, so Postgres is looked at before a call."""
    first, second = await processes(db, 2)
    second.deaf = True
    await first.refused(limited(5.0), await now_of(db), 0)
    await turned_away(second)


async def test_nothing_is_asked_while_nothing_is_throttled(db):
    (one,) = await processes(db, 1)
    began = time.perf_counter()
    for _ in range(10_000):
        await one.permit(SCOPE, {})
        one.worked(SCOPE, None)
    each_us = (time.perf_counter() - began) * 100
    assert one._asks.batches == 0
    assert each_us < 50


def gated(runtime: Any, server: FakeOpenAI) -> OpenAIChat:
    """Put a real client of `server` into the worker."""

    async def stamp(request: httpx.Request) -> None:
        request.headers[SENT] = str(time.monotonic())

    http = httpx.AsyncClient(event_hooks={"request": [stamp]})
    model = OpenAIChat(
        http, "m", prices=load_prices(None), base_url=server.base_url, api_key="sk-secret"
    )
    runtime.models.get = lambda name: model
    return model


class Fleet:
    """Two workers and a scheduler that play one round after another."""

    def __init__(self, play: Play, gate: RateGate, workers: list[Runtime], shared: Shared) -> None:
        self.play, self.gate, self.workers, self.shared = play, gate, workers, shared
        self.loops = make_loops(shared)[1:3]  # wake and admit
        self.bells: list[tuple[UUID, int]] = []
        self.done = 0
        self.rounds: list[tuple[float, int]] = []
        """When each round began, and how many calls it made."""

    async def start(self, n: int) -> list[tuple[UUID, int]]:
        """Start runs; return their doorbells."""
        return [(await self.play.start(f"q{i}"), 1) for i in range(n)]

    async def round(self) -> None:
        """Answer every doorbell; what was refused by then is known to both workers."""
        began, calls = time.monotonic(), len(self.gate.passed) + len(self.gate.refused)
        answers = [
            answer(self.workers[i % 2], self.play.tenant_id, run_id, version)
            for i, (run_id, version) in enumerate(self.bells)
        ]
        self.done += (await asyncio.gather(*answers)).count("succeeded")
        self.gate.known_at = time.monotonic()
        made = len(self.gate.passed) + len(self.gate.refused) - calls
        self.rounds.append((began, made))
        look = await look_once(self.shared)
        for loop in self.loops:
            await loop.run_once(look)
        bell: Any = self.shared.bell
        self.bells = [(rung.run_id, rung.version) for rung in bell.rung]
        bell.rung.clear()
        await asyncio.sleep(0.01)

    def herd(self) -> float:
        """Return by how many a round made more calls than there were slots since the one before:
        one each 0.1 s, and two for the edges.
        """
        return max(n - 2 - (b - a) / 0.1 for (a, _), (b, n) in pairwise(self.rounds[1:]))


@pytest.mark.parametrize("say", ["ms", "float", "seconds", "date", "nothing"])
async def test_two_workers_release_their_runs_paced(play, db, say):
    """INV14: the fake provider counts no early call and no herd; every run succeeds."""
    gate = RateGate(per_s=8, burst=2, say=say, pause_s=None if say == "nothing" else 1.5)
    async with FakeOpenAI(gate=gate) as server:
        wire = Wire()
        workers = [await make_runtime(db), await make_runtime(db)]
        for one in workers:
            gated(one, server)
            one.throttles._broadcast = wire
            wire.listeners.append(one.throttles)
        fleet = Fleet(play, gate, workers, await make_shared(db))
        fleet.bells, later = await fleet.start(8), await fleet.start(8)
        await fleet.round()
        fleet.bells += later  # they have never called: only the shared throttle holds them back
        deadline = time.monotonic() + 60
        while fleet.done < 16:
            assert time.monotonic() < deadline, gate.report()
            await fleet.round()
        report = gate.report()
        assert gate.refused, "or the test shows nothing"
        assert report["early"] == 0, report
        assert fleet.herd() <= 0, fleet.rounds


async def test_the_attempts_of_a_step_and_their_reasons_are_kept(play, db):
    headers = {"Retry-After": "0.2", "x-should-retry": "true"}
    refusals = [refusal(429, "slow down", headers=headers), refusal(500, "oops")]
    async with FakeOpenAI() as server:
        server.answers.extend(refusals)
        runtime = await make_runtime(db)
        gated(runtime, server)
        run_id = await play.start()
        for _ in range(3):
            run = await play.read(run_id)
            await sql(
                db, "UPDATE runs SET status = 'running', not_before = NULL WHERE id = :r", r=run_id
            )
            await asyncio.sleep(0.4)
            await answer(runtime, play.tenant_id, run_id, run.version)
        events = await play.events(run_id)
    failed = [e["payload"] for e in events if e["type"] == "step.failed"]
    assert [f["attempt"] for f in failed] == [1, 2]
    assert [f["error"]["code"] for f in failed] == ["LIMITED", "MODEL_UNAVAILABLE"]
    assert failed[0]["error"]["retry_after_s"] >= 0.1
    assert (await play.read(run_id)).state.status == "succeeded"
    assert "sk-secret" not in str(events)


@pytest.mark.parametrize("code", ["insufficient_quota", "billing_hard_limit_reached"])
async def test_a_used_up_quota_is_permanent_and_throttles_nobody(db, code):
    async with FakeOpenAI() as server:
        server.answers.append(refusal(429, "pay", code=code, headers={"Retry-After": "1"}))
        runtime = await make_runtime(db)
        model = gated(runtime, server)
        with pytest.raises(Permanent):
            await model.chat(ChatRequest("m", ()))
        assert not runtime.throttles.live


async def test_a_late_permit_gets_a_time_of_its_own(db, monkeypatch):
    (one,) = await processes(db, 1)
    await one.refused(limited(0.1), await now_of(db), 0)
    throttle = one.live[SCOPE]
    await asyncio.sleep(3.0)
    monkeypatch.setattr("random.random", lambda: 0.5)  # a time within the nap is awaited in place
    now_of_clock = await now_of(db)
    late = Permit(SCOPE, throttle.until, throttle.hits)
    spread = await turned_away(one, {"permit": late.to_json()})
    assert spread.permit is not None
    assert spread.permit["spread"] is True
    assert slot_of(spread) <= now_of_clock + timedelta(seconds=5)
