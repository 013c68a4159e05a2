"""Who is dead: the reaper's decisions without its I/O."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from harness_common.core.inputs import OwnerLost, Released
from harness_common.core.liveness import Absence, Watch, heartbeat_timeout_s, loss
from harness_common.settings import DatabaseSettings, WorkerSettings

NOW = datetime(2025, 1, 1, tzinfo=UTC)
A, B, C = (UUID(int=n) for n in range(3))


def at(s: float) -> datetime:
    return NOW + timedelta(seconds=s)


def test_silence_counts_after_a_whole_lease_of_watching():
    watch = Watch(15.0)
    assert not watch.silence_counts(NOW)
    for s in range(0, 15, 5):
        watch.look(at(s))
        assert not watch.silence_counts(at(s))
    watch.look(at(15))
    assert watch.silence_counts(at(15))


def test_a_gap_starts_the_watch_anew():
    """INV7: while Postgres was away nobody could send a heartbeat."""
    watch = Watch(15.0)
    for s in (0, 7, 14, 21):
        watch.look(at(s))
    assert watch.silence_counts(at(21))
    watch.look(at(29))
    assert not watch.silence_counts(at(29))


def test_a_clock_that_was_set_back_starts_the_watch_anew():
    """By the old beginning nobody would be dead for an hour."""
    watch = Watch(15.0)
    for s in (0, 7, 14, 21):
        watch.look(at(s))
    for s in (-3600, -3593, -3586):
        watch.look(at(s))
        assert not watch.silence_counts(at(s))
    watch.look(at(-3585))
    assert watch.silence_counts(at(-3585))


def test_two_samples_a_second_apart_tell_an_absence():
    absence = Absence()
    silent = {A: 2.0, B: 2.0}
    assert absence.absent(0.0, {A, B}, silent) == []
    assert absence.absent(1.0, {B}, silent) == []
    assert absence.absent(1.9, {B}, silent) == []
    assert absence.absent(2.0, {B}, silent) == [A]


@pytest.mark.parametrize(
    ("seen_first", "connected", "silent_s"),
    [({A}, set(), 9.0), ({B}, {B}, 9.0), ({A, B}, {B}, 0.5), ({A, B}, {A, B}, 9.0)],
    ids=["nobody else is connected", "never seen", "heard lately", "is there"],
)
def test_an_absence_that_tells_nothing(seen_first, connected, silent_s):
    absence = Absence()
    silent = {A: silent_s, B: 0.1}
    absence.absent(0.0, seen_first, silent)
    assert absence.absent(1.0, connected, silent) == []
    assert absence.absent(9.0, connected, silent) == []


def test_a_worker_that_came_back_is_absent_anew():
    absence, silent = Absence(), {A: 9.0, B: 0.1}
    absence.absent(0.0, {A, B}, silent)
    absence.absent(1.0, {B}, silent)
    absence.absent(1.5, {A, B}, silent)
    assert absence.absent(2.0, {B}, silent) == []
    assert absence.absent(3.0, {B}, silent) == [A]


def test_a_loss_without_a_witness_is_no_death():
    assert loss(C, None, None) == Released(f"its worker {C} is not known")
    assert loss(C, "w", None) == OwnerLost("w", "died")
    assert loss(C, "w", "killed") == OwnerLost("w", "killed")
    assert loss(C, "w", "killed", late=True) == Released("its worker w had been taken for dead")
    assert loss(C, "w", "killed", solo=True) == OwnerLost("w", "killed", solo=True)


@pytest.mark.parametrize("lease_s", [WorkerSettings().lease_s, 3.0])
def test_one_lost_heartbeat_leaves_time_for_the_next(lease_s):
    hangs_s = heartbeat_timeout_s(DatabaseSettings().timeout_s, lease_s)
    pause_s = 1.1 * lease_s / 3
    assert hangs_s + pause_s < lease_s
