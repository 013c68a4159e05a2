"""When schedules fire: clock changes, calendar edges, catching up, jitter; and what is refused."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_common.core.errors import Invalid
from harness_common.core.schedule import (
    ON_TIME_S,
    At,
    CatchUp,
    Cron,
    Every,
    Missed,
    Schedule,
    check,
    coming,
    due,
    fires_at,
    next_after,
    when_from_json,
    when_to_json,
)

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def cron(expression: str, zone: str = "UTC", **more) -> Schedule:
    return Schedule(Cron(expression, zone), **more)


def times(schedule: Schedule, after: datetime, count: int, zone: str = "UTC") -> list[str]:
    found = islice(coming(schedule, after), count)
    return [at.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M%z") for at in found]


# -- clock changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # 2026-03-29 02:00 CET becomes 03:00 CEST; 2026-10-25 03:00 CEST becomes 02:00 CET.
        ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 02:30+0200"]),
        ("0,30 2 * * *", BERLIN, "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        ("0 2,3 * * *", BERLIN, "2026-03-28 12:00", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        ("0 9 * * *", BERLIN, "2026-03-27 12:00", ["03-28 09:00+0100", "03-29 09:00+0200"]),
        # 2026-03-08 02:00 EST becomes 03:00 EDT; 2026-11-01 02:00 EDT becomes 01:00 EST.
        ("15 2 * * *", NEW_YORK, "2026-03-07 12:00", ["03-08 03:00-0400", "03-09 02:15-0400"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31 12:00", ["11-01 01:30-0400", "11-02 01:30-0500"]),
        # Real time, for whatever begins with a star.
        (
            "0 * * * *",
            NEW_YORK,
            "2026-11-01 04:30",
            ["11-01 01:00-0400", "11-01 01:00-0500", "11-01 02:00-0500"],
        ),
        ("0 * * * *", BERLIN, "2026-03-29 00:30", ["03-29 03:00+0200", "03-29 04:00+0200"]),
        ("*/30 2 * * *", BERLIN, "2026-03-28 12:00", ["03-30 02:00+0200", "03-30 02:30+0200"]),
        (
            "*/30 2 * * *",
            BERLIN,
            "2026-10-24 12:00",
            ["10-25 02:00+0200", "10-25 02:30+0200", "10-25 02:00+0100", "10-25 02:30+0100"],
        ),
    ],
)
def test_clock_changes(expression, zone, after, expected):
    assert times(cron(expression, zone), utc(after), len(expected), zone) == expected


@pytest.mark.parametrize(("zone", "day"), [(BERLIN, "2026-10-25"), (NEW_YORK, "2026-11-01")])
def test_a_repeated_hour_fires_once_wherever_one_looks_from(zone, day):
    """Also from inside the second pass, where the wall clock says a time before the last firing."""
    schedule = cron("30 1,2 * * *", zone)
    fired = set()
    for minute in range(0, 24 * 60, 5):
        after = utc(f"{day} 00:00") + timedelta(minutes=minute)
        at = next_after(schedule, after)
        assert at is not None
        assert at > after
        fired.add(at)
    walls = [at.astimezone(ZoneInfo(zone)).strftime("%d %H:%M") for at in fired]
    assert len(walls) == len(set(walls))


def test_an_interval_is_real_time_across_a_clock_change():
    schedule = Schedule(Every(86_400, datetime(2026, 3, 28, 8, tzinfo=UTC)))
    assert times(schedule, utc("2026-03-27 12:00"), 3) == [
        "03-28 08:00+0000", "03-29 08:00+0000", "03-30 08:00+0000",
    ]  # fmt: skip


# -- the calendar ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01 00:00", ["2028-02-29", "2032-02-29"]),
        ("0 0 31 * *", "2026-01-31 00:00", ["2026-03-31", "2026-05-31"]),
        ("0 0 L * *", "2026-01-31 00:00", ["2026-02-28", "2026-03-31"]),
        ("0 0 LW * *", "2026-01-31 00:00", ["2026-02-27", "2026-03-31"]),
        ("0 0 * * 1#1", "2026-01-31 00:00", ["2026-02-02", "2026-03-02"]),
        ("@yearly", "2026-01-01 00:00", ["2027-01-01", "2028-01-01"]),
        ("@Daily", "2026-12-31 00:00", ["2027-01-01", "2027-01-02"]),
        ("0 0 13 * FRI", "2026-02-08 00:00", ["2026-02-13", "2026-02-20"]),
    ],
)
def test_the_calendar(expression, after, expected):
    found = islice(coming(cron(expression), utc(after)), len(expected))
    assert [at.date().isoformat() for at in found] == expected


def test_bounds_are_within():
    noon = "0 12 * * *"
    first, last = utc("2026-05-02 12:00"), utc("2026-05-03 12:00")
    bounded = cron(noon, starts_at=first, ends_at=last)
    assert list(coming(bounded, utc("2020-01-01 00:00"))) == [first, last]


def test_at_is_once():
    at = utc("2026-05-02 12:00")
    schedule = Schedule(At(at))
    assert list(coming(schedule, utc("2026-05-01 00:00"))) == [at]
    assert next_after(schedule, at) is None


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "field", "says"),
    [
        (Cron("61 * * * *"), "when.cron", r"minute is '61'; it takes 0-59"),
        (Cron("* 24 * * *"), "when.cron", r"hour is '24'; it takes 0-23"),
        (Cron("* * 0 * *"), "when.cron", r"day-of-month is '0'; it takes 1-31"),
        (Cron("* * * FOO *"), "when.cron", r"month is 'FOO'; it takes 1-12, JAN-DEC"),
        (Cron("* * * * 8"), "when.cron", r"day-of-week is '8'; it takes 0-7"),
        (Cron("*/0 * * * *"), "when.cron", r"minute is '\*/0'"),
        (Cron("5-1 * * * *"), "when.cron", r"ranges \(1-5\)"),
        (Cron("* * * *"), "when.cron", r"has 4 fields; it takes 5"),
        (Cron("0 * * * * *"), "when.cron", r"For seconds use every_s"),
        (Cron("@reboot"), "when.cron", r"@hourly"),
        (Cron(""), "when.cron", r"0 fields"),
        (Cron("1," * 200 + "1 * * * *"), "when.cron", r"200 characters"),
        (Cron("0 0 31 2 *"), "when.cron", r"day-of-month is '31'"),
        (Cron("* * */20 * 1L"), "when.cron", r"fits no day"),
        (Cron("* * * * *", "Europe/Nowhere"), "when.time_zone", r"Europe/Berlin"),
        (Cron("* * * * *", "../etc/passwd"), "when.time_zone", r"IANA"),
        (Every(0.5, utc("2026-01-01 00:00")), "when.every_s", r"0.5; it takes 1 to"),
        (Every(1e9, utc("2026-01-01 00:00")), "when.every_s", r"1e\+09"),
    ],
)
def test_what_is_refused_says_why(when, field, says):
    with pytest.raises(Invalid, match=says) as caught:
        check(when)
    assert caught.value.detail["field"] == field
    assert "value" in caught.value.detail


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="0123456789*/,-#LW @²abMONJAN", max_size=30))
def test_any_text_is_either_followed_or_refused(text):
    try:
        check(Cron(text))
    except Invalid:
        return
    assert next_after(cron(text), utc("2026-01-01 00:00")) is not None


@pytest.mark.parametrize(
    "when",
    [Cron("0 9 * * *", BERLIN), Every(1.5, utc("2026-01-01 00:00")), At(utc("2026-01-01 00:00"))],
)
def test_json(when):
    check(when)
    assert when_from_json(when_to_json(when)) == when


# -- properties ------------------------------------------------------------------------------------

minutes = st.one_of(
    st.just("*"), st.sampled_from(["*/7", "*/30", "0,30"]), st.integers(0, 59).map(str)
)
hours = st.one_of(st.just("*"), st.sampled_from(["*/3", "0-4"]), st.integers(0, 23).map(str))
zones = st.sampled_from(
    ["UTC", BERLIN, NEW_YORK, "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu"]
)
instants = st.integers(0, 15 * 366 * 86_400).map(
    lambda s: datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=s)
)
whens = st.one_of(
    st.builds(lambda m, h, z: Cron(f"{m} {h} * * *", z), minutes, hours, zones),
    st.builds(Every, st.floats(1, 1e6), instants),
)


@settings(max_examples=300, deadline=None)
@given(whens, instants, st.floats(0, 5000))
def test_times_strictly_increase_and_jitter_keeps_their_order(when, after, jitter_s):
    schedule = Schedule(when, jitter_s=jitter_s, seed="s")
    found = [after, *islice(coming(schedule, after), 12)]
    assert len(found) == 13
    assert all(a < b for a, b in pairwise(found))
    for a, b in pairwise(found[1:]):
        assert a <= fires_at(schedule, a) < b
        assert (fires_at(schedule, a) - a).total_seconds() <= jitter_s


@settings(max_examples=200, deadline=None)
@given(whens, instants, st.floats(0, 400), st.sampled_from(CatchUp), st.floats(0, 100_000))
def test_every_time_is_decided_once(when, last, jitter_s, catch_up, window_s):
    """Look again and again, at odd moments: no time fires twice, out of order or early."""
    schedule = Schedule(when, jitter_s=jitter_s, seed="s")
    now = last
    fired: list[datetime] = []
    for wait_s in (1, 400, 20_000, 3, 90_000, 61):
        now += timedelta(seconds=wait_s)
        for _ in range(5):
            found = due(schedule, last, now, catch_up, window_s, most=3)
            if found.missed is not None:
                assert last < found.missed.first <= found.missed.until <= now
                last = found.missed.until
            if found.fire:
                fired += found.fire
                last = found.fire[-1]
    assert all(a < b for a, b in pairwise(fired))
    assert all(fires_at(schedule, at) <= now for at in fired)


# -- catching up -----------------------------------------------------------------------------------

HOURLY = cron("0 * * * *")
LAST, NOW = utc("2026-05-01 00:00"), utc("2026-05-01 05:10")


def at(hour: int) -> datetime:
    return utc(f"2026-05-01 0{hour}:00")


@pytest.mark.parametrize(
    ("catch_up", "window_s", "hours", "missed_from"),
    [
        (CatchUp.NONE, 1e9, [], 1),
        (CatchUp.LAST, 60, [], 1),
        (CatchUp.LAST, 600, [5], 1),
        (CatchUp.ALL, 60, [], 1),
        (CatchUp.ALL, 2 * 3600, [4, 5], 1),
        (CatchUp.ALL, 1e9, [1, 2, 3, 4, 5], None),
    ],
)
def test_after_an_outage(catch_up, window_s, hours, missed_from):
    found = due(HOURLY, LAST, NOW, catch_up, window_s)
    assert list(found.fire) == [at(h) for h in hours]
    assert (found.missed and found.missed.first) == (missed_from and at(missed_from))
    if found.missed is not None:
        until = found.missed.until
        assert until == at(5) if not hours else until < at(hours[0])


def test_what_is_on_time_fires_whatever_the_policy():
    for catch_up in CatchUp:
        now = at(1) + timedelta(seconds=ON_TIME_S)
        assert due(HOURLY, LAST, now, catch_up, 60).fire == (at(1),)
        assert due(HOURLY, LAST, at(1) - timedelta(seconds=1), catch_up, 60) == due(
            HOURLY, at(1), now, catch_up, 60
        )


def test_all_goes_on_where_the_last_look_ended():
    found = due(HOURLY, LAST, NOW, CatchUp.ALL, 1e9, most=2)
    assert found.fire == (at(1), at(2))
    assert due(HOURLY, at(2), NOW, CatchUp.ALL, 1e9, most=2).fire == (at(3), at(4))


def test_a_month_of_missed_seconds_costs_nothing():
    schedule = Schedule(Every(1, LAST))
    now = LAST + timedelta(days=30)
    found = due(schedule, LAST, now, CatchUp.LAST, 60)
    assert found.fire == (now,)
    assert found.missed == Missed(LAST + timedelta(seconds=1), now - timedelta(microseconds=1))


def test_jitter_is_the_same_for_whoever_asks_and_another_for_each_firing():
    schedule = cron("0 * * * *", jitter_s=600, seed="a")
    delays = [fires_at(schedule, at(h)) - at(h) for h in range(8)]
    assert delays == [fires_at(schedule, at(h)) - at(h) for h in range(8)]
    assert len(set(delays)) == 8
    assert max(delays) - min(delays) > timedelta(seconds=100)
    other = cron("0 * * * *", jitter_s=600, seed="b")
    assert fires_at(other, at(1)) != fires_at(schedule, at(1))


def test_a_firing_is_due_when_its_jitter_is_over():
    schedule = cron("0 * * * *", jitter_s=600, seed="a")
    moment = fires_at(schedule, at(1))
    early, late = moment - timedelta(milliseconds=1), moment
    assert due(schedule, LAST, early, CatchUp.LAST, 60).fire == ()
    assert due(schedule, LAST, late, CatchUp.LAST, 60).fire == (at(1),)


def test_a_worker_process_never_loads_schedules():
    """Its memory is bounded; only the API and the scheduler reckon with times."""
    code = (
        "import sys, harness_worker.child, harness_worker.tasks\n"
        "found = {'cronsim', 'harness_common.core.schedule', 'harness_common.firing'}\n"
        "assert not found & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
