"""Who gets the next slot: shares of time, newcomers, limits; simulated, without a clock."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from uuid import UUID

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness_common.core.fairness import (
    Ledger,
    Room,
    Stream,
    Tenant,
    blocks,
    crowded,
    headroom,
    share,
)

Q = Stream("q")
ANY = 1_000_000


def tenant(n: int, **more) -> Tenant:
    waiting = more.pop("waiting", 0)
    if isinstance(waiting, int):
        waiting = {Q: waiting} if waiting else {}
    return Tenant(UUID(int=n), waiting=waiting, **more)


def room(slots: int, **more) -> Room:
    queues = more.pop("queues", {"q": ANY})
    return Room(slots, queues, **more)


def counts(got) -> dict[int, int]:
    return {t.int: sum(streams.values()) for t, streams in got.items()}


# ── one round ────────────────────────────────────────────────────────────────────────────────────


def test_one_round_spreads_by_weight():
    got = share([tenant(1, weight=3, waiting=99), tenant(2, waiting=99)], room(40, idle=2))
    assert abs(counts(got)[1] - 30) <= 1
    assert sum(counts(got).values()) == 40


def test_slots_that_long_steps_hold_are_charged_before_they_end():
    """Else a tenant of 2-s steps takes every slot while its first ones still run."""
    long = tenant(1, running=5, held_s=0.05, turn_s=2.0, waiting=99)
    short = tenant(2, running=0, settled_s=3.0, turn_s=0.02, waiting=99)
    assert 2 in counts(share([long, short], room(6)))
    assert 1 not in counts(share([long, short], room(6)))


def test_a_newcomer_finds_a_slot_kept_for_it():
    hog, quiet = tenant(1, waiting=10_000), tenant(2)
    first = share([hog, quiet], room(40, idle=3))
    assert counts(first) == {1: 38}
    hog = replace(hog, running=38)
    come = replace(quiet, waiting={Q: 1})
    assert counts(share([hog, come], room(40, idle=2))) == {2: 1}


def test_nothing_is_kept_when_every_tenant_runs_something():
    hog, other = tenant(1, running=30, waiting=99), tenant(2, running=2)
    assert counts(share([hog, other], room(40, idle=0))) == {1: 8}


def test_a_place_is_kept_in_each_queue_as_well():
    hog = tenant(1, running=5, waiting={Stream("gpu"): 99})
    kept = room(100, queues={"gpu": 3}, kept={"gpu": 1}, idle=4)
    assert counts(share([hog, tenant(2)], kept)) == {1: 2}
    come = tenant(2, waiting={Stream("gpu"): 1})
    assert counts(share([hog, come], kept))[2] == 1


def test_a_queue_without_workers_takes_no_slot():
    stuck = tenant(1, waiting={Stream("gpu"): 50, Q: 2})
    assert share([stuck], room(40)) == {UUID(int=1): {Q: 2}}


def test_starts_are_limited_and_resuming_is_no_start():
    mine = {Q: 10, Stream("q", resumed=True): 3}
    got = share([tenant(1, waiting=mine, starts=2), tenant(2, waiting=5)], room(40, starts=4))
    assert got[UUID(int=1)] == {Q: 2, Stream("q", resumed=True): 3}
    assert got[UUID(int=2)] == {Q: 2}


@st.composite
def scenes(draw):
    names = ["q", "r", "gone"]
    tenants = [
        tenant(
            n + 1,
            running=(running := draw(st.integers(0, 8))),
            max_running=max(running, draw(st.integers(0, 12))),
            waiting={
                Stream(draw(st.sampled_from(names)), draw(st.booleans())): draw(st.integers(0, 9))
                for _ in range(draw(st.integers(0, 3)))
            },
            weight=draw(st.sampled_from([0.01, 0.5, 1.0, 3.0, 1000.0])),
            settled_s=draw(st.floats(0, 1000)),
            starts=draw(st.sampled_from([None, 0, 1, 3])),
            turn_s=draw(st.sampled_from([0.02, 1.0, 10.0])),
        )
        for n in range(draw(st.integers(1, 6)))
    ]
    used = sum(t.running for t in tenants)
    where = Room(
        slots=max(0, used + draw(st.integers(-3, 40))),
        queues={"q": draw(st.integers(0, 20)), "r": draw(st.integers(0, 20))},
        kept={"q": draw(st.integers(0, 2))},
        starts=draw(st.sampled_from([None, 0, 2, 9])),
        most=draw(st.integers(0, 50)),
        idle=sum(t.running == 0 for t in tenants) + draw(st.integers(0, 3)),
    )
    return tenants, where


@settings(max_examples=250, deadline=None)
@given(scenes())
def test_no_limit_is_ever_exceeded(scene):
    """INV13."""
    tenants, where = scene
    got = share(tenants, where)
    by_id = {t.id: t for t in tenants}
    queues: Counter[str] = Counter()
    starts = 0
    for tenant_id, mine in got.items():
        one, begun = by_id[tenant_id], 0
        for stream, count in mine.items():
            assert 0 < count <= one.waiting[stream]
            queues[stream.queue] += count
            begun += 0 if stream.resumed else count
        assert one.running + sum(mine.values()) <= one.max_running
        assert one.starts is None or begun <= one.starts
        starts += begun
    total = sum(counts(got).values())
    free = where.slots - sum(t.running for t in tenants)
    assert total <= max(0, free)
    assert total <= where.most
    assert where.starts is None or starts <= where.starts
    assert all(n <= where.queues.get(q, 0) for q, n in queues.items())


@settings(max_examples=250, deadline=None)
@given(scenes())
def test_no_slot_is_idle_that_somebody_may_have(scene):
    """Work conserving, but for the headroom and for what the limits forbid."""
    tenants, where = scene
    got = share(tenants, where)
    given_ = counts(got)
    left = where.slots - sum(t.running for t in tenants) - sum(given_.values())
    if sum(given_.values()) >= where.most or left <= headroom(where.slots):
        return
    queues: Counter[str] = Counter()
    starts = 0
    for mine in got.values():
        for stream, count in mine.items():
            queues[stream.queue] += count
            starts += 0 if stream.resumed else count
    for one in tenants:
        mine = got.get(one.id, {})
        begun = sum(n for s, n in mine.items() if not s.resumed)
        if one.running + sum(mine.values()) >= one.max_running:
            continue
        for stream, waiting in one.waiting.items():
            has_place = where.queues.get(stream.queue, 0) - queues[stream.queue] > where.kept.get(
                stream.queue, 0
            )
            may_start = stream.resumed or (
                (one.starts is None or begun < one.starts)
                and (where.starts is None or starts < where.starts)
            )
            assert not (waiting > mine.get(stream, 0) and has_place and may_start)


@settings(max_examples=150, deadline=None)
@given(scenes(), st.data())
def test_blocks_stay_within_every_limit_and_cover_what_was_given(scene, data):
    """INV13: the sum of the blocks bounds the sum of what runs."""
    tenants, where = scene
    given_ = {t: sum(s.values()) for t, s in share(tenants, where).items()}
    likely = [t.id for t in tenants if data.draw(st.booleans())]
    out = blocks(tenants, given_, likely, where)
    used = sum(t.running for t in tenants)
    assert sum(out.values()) <= max(where.slots, used)
    for one in tenants:
        most = max(one.max_running, one.running)
        assert one.running + given_.get(one.id, 0) <= out[one.id] <= most


def test_blocks_leave_newcomers_their_headroom():
    hog, quiet = tenant(1, running=10), tenant(2)
    where = room(40, idle=2)
    assert blocks([hog, quiet], {}, [hog.id], where) == {hog.id: 38, quiet.id: 0}
    both = blocks([hog, quiet], {}, [hog.id, quiet.id], where)
    assert both[quiet.id] >= 1
    assert sum(both.values()) == 39


# ── whose turns must end ─────────────────────────────────────────────────────────────────────────


def test_crowded_is_who_holds_what_a_waiting_run_could_use():
    full, quiet = tenant(1, running=5, max_running=5, waiting=3), tenant(2, running=2)
    assert crowded([full, quiet], {}, room(40)) == {full.id}, "only its own slots would help it"
    blocked = tenant(3, waiting=1)
    assert crowded([full, quiet, blocked], {}, room(7)) == {full.id, quiet.id}
    assert crowded([quiet], {}, room(40)) == set()
    stuck = tenant(4, waiting={Stream("gone"): 9})
    assert crowded([quiet, stuck], {}, room(40)) == set(), "no slot would help it"
    assert crowded([quiet, tenant(5, waiting=9, starts=0)], {}, room(40)) == set()


# ── simulated time ───────────────────────────────────────────────────────────────────────────────


@dataclass
class Player:
    """A tenant whose runs each take one turn of `turn_s`."""

    n: int
    turn_s: float
    weight: float = 1.0
    waiting: int = 1_000_000
    max_running: int = 1_000_000
    ends: list[tuple[float, float]] = field(default_factory=list)
    settled_s: float = 0.0
    first_start_s: float | None = None

    def tenant(self, now: float) -> Tenant:
        held = sum(now - begun for begun, _ in self.ends)
        return tenant(
            self.n, running=len(self.ends), max_running=self.max_running, waiting=self.waiting,
            weight=self.weight, settled_s=self.settled_s, held_s=held,
        )  # fmt: skip

    def used_s(self, now: float) -> float:
        return self.settled_s + sum(now - begun for begun, _ in self.ends)

    def end(self, now: float) -> None:
        over = [(b, e) for b, e in self.ends if e <= now]
        self.ends = [(b, e) for b, e in self.ends if e > now]
        self.settled_s += sum(e - b for b, e in over)

    def begin(self, now: float, count: int) -> None:
        self.waiting -= count
        self.ends += [(now, now + self.turn_s)] * count
        if self.first_start_s is None:
            self.first_start_s = now


class World:
    def __init__(self, slots: int, *players: Player, idle: int = 0) -> None:
        self.slots, self.players, self.ledger = slots, list(players), Ledger()
        self.now, self.idle, self.most = 0.0, idle, 0

    def run(self, seconds: float, tick_s: float = 0.02) -> None:
        until = self.now + seconds
        while self.now < until:
            for p in self.players:
                p.end(self.now)
            seen = [p.tenant(self.now) for p in self.players]
            idle = self.idle + sum(t.running == 0 for t in seen)
            where = room(self.slots, idle=idle)
            got = share(self.ledger.enter(seen, where.queues, self.now), where)
            for p in self.players:
                if n := counts(got).get(p.n, 0):
                    p.begin(self.now, n)
                    self.ledger.admitted(UUID(int=p.n), n)
            self.most = max(self.most, sum(len(p.ends) for p in self.players))
            self.now += tick_s

    def shares(self, *since: float) -> list[float]:
        used = [
            p.used_s(self.now) - s for p, s in zip(self.players, since or [0.0] * 9, strict=False)
        ]
        return [u / sum(used) for u in used]


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([(1, 1), (3, 1), (1, 3), (10, 1), (2, 3)]),
    st.sampled_from([(0.05, 2.0), (2.0, 0.05), (0.5, 0.5)]),
    st.integers(4, 16),
)
def test_shares_of_time_follow_the_weights_whatever_the_steps_take(weights, turns, slots):
    # Who is due less than one slot gets the one that is kept for those who run nothing each time
    # it runs nothing: nobody else could have it.
    assume(headroom(slots) == 0 or slots * min(weights) >= sum(weights))
    a, b = (Player(n + 1, turns[n], weights[n]) for n in range(2))
    world = World(slots, a, b)
    world.run(10, 0.05)
    before = (a.used_s(world.now), b.used_s(world.now))
    world.run(100, 0.05)
    got, want = world.shares(*before)[0], weights[0] / sum(weights)
    assert abs(got - want) <= 0.1 * min(want, 1 - want), (got, want)
    assert world.most <= slots


def test_a_tenant_with_one_run_starts_at_once_beside_ten_thousand():
    hog = Player(1, 2.0, waiting=10_000)
    world = World(20, hog, quiet := Player(2, 0.02, waiting=0))
    world.run(30)
    quiet.waiting = 1
    world.run(0.03)
    assert quiet.first_start_s is not None


def test_idling_is_no_credit_and_using_what_nobody_wanted_no_debt():
    early, late = Player(1, 0.1), Player(2, 0.1, waiting=0)
    world = World(10, early, late)
    world.run(20)
    late.waiting = 1_000_000
    before = (early.used_s(world.now), late.used_s(world.now))
    world.run(10)
    assert abs(world.shares(*before)[0] - 0.5) < 0.05


def test_a_debt_is_not_shed_by_asking_for_nothing_for_a_moment():
    """Else a tenant that comes in bursts would begin level each time."""
    steady, bursts = Player(1, 0.1), Player(2, 5.0, waiting=0)
    world = World(4, steady, bursts)
    for _ in range(120):
        bursts.waiting = 4
        world.run(0.3)
        bursts.waiting = 0
        world.run(0.06)
    assert world.shares()[1] < 0.6


def test_another_weight_counts_from_now_on():
    a, b = Player(1, 0.1), Player(2, 0.1)
    world = World(10, a, b)
    world.run(20)
    a.weight = 3.0
    before = (a.used_s(world.now), b.used_s(world.now))
    world.run(20)
    assert abs(world.shares(*before)[0] - 0.75) < 0.05


def test_a_tenant_at_its_own_limit_saves_up_nothing():
    small, big = Player(1, 0.2, max_running=1), Player(2, 0.2)
    world = World(10, small, big)
    world.run(20)
    small.max_running = 1_000_000
    before = (small.used_s(world.now), big.used_s(world.now))
    world.run(10)
    assert abs(world.shares(*before)[0] - 0.5) < 0.05


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.floats(0.02, 3.0), st.floats(0.1, 5.0)), min_size=2, max_size=12))
def test_nobody_starves(kinds):
    """INV13: fewer slots than tenants, and yet each one's share of time is near its weight's."""
    players = [Player(n + 1, turn, weight) for n, (turn, weight) in enumerate(kinds)]
    world = World(1, *players)
    world.run(60, 0.05)
    assert all(p.first_start_s is not None for p in players)


def test_the_same_scene_gives_the_same_round():
    tenants = [tenant(n, waiting=9, settled_s=n % 3) for n in range(1, 7)]
    assert share(tenants, room(13)) == share(tenants[::-1], room(13))
