"""The pace of a throttled provider: slots, permits, and what they are worth later."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.core.inputs import StepDone, StepFailed
from harness_common.core.message import Message, Text
from harness_common.core.retry import RetryRule, classify, retry_in_s
from harness_common.core.rules import advance
from harness_common.core.run import RunState, Status
from harness_common.core.step import Failure, ModelAnswered
from harness_common.core.throttle import Leave, Permit, Throttle, slot
from harness_worker.models.openai_errors import Origin, ServerError, failure
from harness_worker.models.retry_after import rate_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
jitters = st.floats(0, 1, exclude_max=True)
intervals = st.floats(0.01, 60)


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def throttle(*, until_s: float = 0.0, interval_s: float = 1.0, hits: int = 1) -> Throttle:
    return Throttle("s", after(until_s), interval_s, hits, NOW)


@given(intervals, st.integers(0, 1000), jitters, jitters)
def test_slots_keep_their_order_and_are_never_early(interval_s, number, one, other):
    first, second = slot(NOW, number, interval_s, one), slot(NOW, number + 1, interval_s, other)
    assert first >= NOW
    assert (second - first).total_seconds() >= 0.94 * interval_s


@pytest.mark.parametrize(
    ("at_s", "hits", "spread", "now_s", "leave"),
    [
        (5, 1, False, 4.9, Leave.WAIT),
        (5, 1, False, 5.0, Leave.GO),
        (5, 1, False, 6.9, Leave.GO),
        (5, 1, False, 7.1, Leave.LATE),
        (5, 1, True, 99.0, Leave.GO),
        (5, 2, False, 5.0, Leave.VOID),  # of a throttle that has refused since, or of another one
        (1, 1, False, 9.0, Leave.VOID),  # the pause was lengthened beyond it
        (1, 1, True, 9.0, Leave.VOID),
    ],
)
def test_what_a_permit_is_worth(at_s, hits, spread, now_s, leave):
    permit = Permit("s", after(at_s), hits, spread)
    assert permit.judge(throttle(until_s=2), after(now_s)) is leave


@given(st.floats(2.1, 1e6), jitters)
def test_late_permits_spread_over_as_long_as_they_are_late(late_s, jitter):
    """A scheduler that was away for an hour must not let an hour's calls go at once."""
    fresh = Permit("s", NOW, 1).later(after(late_s), jitter)
    assert after(late_s) <= fresh.at <= after(2 * late_s + 0.001)
    assert fresh.judge(throttle(), after(3 * late_s)) is Leave.GO


@pytest.mark.parametrize(
    "memo", [{}, {"permit": None}, {"permit": {"scope": "t"}}, {"permit": {"scope": "s", "at": 1}}]
)
def test_a_permit_that_cannot_be_read_is_none(memo):
    assert Permit.from_memo(memo, "s") is None


def test_a_permit_survives_its_memo():
    permit = Permit("s", NOW, 3, spread=True)
    assert Permit.from_memo({"permit": permit.to_json()}, "s") == permit
    assert Permit.from_memo({"permit": permit.to_json()}, "other") is None


@given(st.floats(0, 1e6), jitters)
def test_a_slot_is_waited_for_exactly(seconds, jitter):
    """Its jitter is in it: more would put two runs into one slot."""
    failure = Failure("limited", "L", "l", seconds, "s", permit={"scope": "s"})
    assert retry_in_s(RetryRule(), failure, 1, jitter) == seconds


def test_a_run_keeps_its_permit_until_it_has_called():
    permit = Permit("s", after(5), 1).to_json()
    failure = Failure("limited", "LIMITED", "l", 5.0, "s", permit=permit)
    state = RunState(status=Status.RUNNING, claimed=True, memo={"a": 1})
    done = advance(state, [StepFailed(failure, NOW)], NOW)
    assert done.state.memo == {"a": 1, "permit": permit}
    assert done.state.not_before == after(5)
    failed, delayed = done.events[1:]
    assert failed.payload["attempt"] == 1
    assert failed.payload["error"]["retry_after_s"] == 5.0
    assert delayed.payload["scope"] == "s"

    running = RunState(status=Status.RUNNING, claimed=True, memo=done.state.memo, limited=1)
    transient = StepFailed(Failure("transient", "T", "t"), NOW, 0.5)
    again = advance(running, [transient], NOW)
    assert again.state.memo == {"a": 1}, "the failed call used it up"
    assert again.events[1].payload["attempt"] == 2
    answered = ModelAnswered(Message("assistant", (Text("x"),)), "stop", "m")
    assert advance(running, [StepDone(answered, NOW)], NOW).state.memo == {"a": 1}


@pytest.mark.parametrize(
    ("limit", "left", "reset", "per_s", "used_up"),
    [
        ("60", "0", "1m0s", 1.0, True),
        ("60", "59", "1s", 1.0, False),
        ("500", "0", "12ms", 500 / 0.012, True),
        ("200", "199", "7m12s", 1 / 432, False),  # a daily limit: the period does not matter
        ("60", "60", "0s", None, False),
        ("60", "0", "soon", None, True),
        ("60", "0", "", None, True),
    ],
)
def test_the_rate_in_the_headers(limit, left, reset, per_s, used_up):
    names = ("limit", "remaining", "reset")
    headers = {
        f"x-ratelimit-{name}-requests": value
        for name, value in zip(names, (limit, left, reset), strict=True)
    }
    rate = rate_of(headers)
    assert rate is not None
    assert rate.per_s == (None if per_s is None else pytest.approx(per_s))
    assert rate.used_up is used_up


@pytest.mark.parametrize("headers", [{}, {"x-ratelimit-limit-requests": "60"}])
def test_no_rate_in_the_headers(headers):
    assert rate_of(headers) is None


def test_a_fault_keeps_its_retry_after_and_a_refusal_its_rate():
    """INV14 holds for every status that names a time."""
    origin = Origin("openai", "m", "sk-secret")
    fault = failure(500, ServerError("oops"), {"retry-after": "7"}, origin)
    assert classify(fault).category == "transient"
    assert classify(fault).retry_after_s == 7
    headers = {
        "retry-after-ms": "900",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "1m0s",
    }
    refused = failure(429, ServerError("slow down"), headers, origin)
    assert refused.detail["limit_per_s"] == 1.0
    assert "sk-secret" not in classify(refused).scope
    tokens = {**headers, "x-ratelimit-remaining-requests": "12"}
    assert "limit_per_s" not in failure(429, ServerError("tokens"), tokens, origin).detail
