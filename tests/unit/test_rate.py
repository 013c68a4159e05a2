"""Rates: no second holds more than the limit, and what may come does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from harness_common.core.rate import Rate


def let_in(per_s: float, pauses: list[float]) -> list[float]:
    """Take all that is allowed at each moment; return when each one came."""
    rate, now, came = Rate(per_s), 1_800_000_000.0, []
    for pause in pauses:
        now += pause
        count = rate.allowed(now)
        came += [now] * count
        rate = rate.charged(now, count)
    return came


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([0.5, 1.0, 3.0, 10.0, 250.0]),
    st.lists(st.floats(0.001, 2.0), min_size=1, max_size=150),
)
def test_no_second_holds_more_than_the_rate(per_s, pauses):
    came = let_in(per_s, pauses)
    for i, at in enumerate(came):
        within = sum(at <= other < at + 0.999_999 for other in came[i:])
        assert within <= max(1, per_s)


def test_asked_often_the_rate_is_reached():
    came = let_in(100.0, [0.005] * 2000)
    assert 970 <= len(came) <= 1000


def test_the_wait_leads_to_the_next_one():
    rate = Rate(4.0).charged(100.0, 1)
    assert rate.allowed(100.0) == 0
    wait_s = rate.wait_s(100.0)
    assert 0.2 < wait_s < 0.25
    assert rate.allowed(100.0 + wait_s) == 1
