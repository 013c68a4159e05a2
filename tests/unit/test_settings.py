"""Settings that would make a process blind are refused when it starts, with what to change."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from harness_common.settings import SchedulerSettings, Settings, WorkerSettings


@pytest.mark.parametrize(
    ("lease_s", "renew_s", "idle_tick_s", "named"),
    [
        (2.0, 0.5, 1.0, r"lease_s is 2 and must be more than twice scheduler\.idle_tick_s \(1\)"),
        (15.0, 5.0, 7.5, r"lease_s is 15 and must be more than twice"),
        (3.0, 3.0, 1.0, r"worker\.renew_s is 3 and must be less than worker\.lease_s \(3\)"),
    ],
)
def test_a_lease_that_looks_or_heartbeats_would_miss_is_refused(
    lease_s, renew_s, idle_tick_s, named
):
    worker = WorkerSettings(lease_s=lease_s, renew_s=renew_s)
    with pytest.raises(ValidationError, match=named):
        Settings(worker=worker, scheduler=SchedulerSettings(idle_tick_s=idle_tick_s))


def test_the_shortest_lease_of_the_tests_is_allowed():
    made = Settings(worker=WorkerSettings(lease_s=3, renew_s=1))
    assert made.worker.lease_s > 2 * made.scheduler.idle_tick_s


@pytest.mark.parametrize(("said", "meant"), [("off", None), ("", None), ("5", 5)])
def test_preparing_statements_can_be_turned_off(monkeypatch, said, meant):
    """A pooler needs it, and a variable has no other way to say None."""
    monkeypatch.setenv("HARNESS_DATABASE__PREPARE_THRESHOLD", said)
    assert Settings().database.prepare_threshold == meant
