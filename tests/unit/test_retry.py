"""When a failed attempt is tried again, and how exceptions become failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_common.core import errors
from harness_common.core.retry import RetryRule, backoff_s, classify, retry_in_s
from harness_common.core.step import Failure

jitters = st.floats(0, 1, exclude_max=True)
rules = st.builds(
    RetryRule,
    st.integers(1, 100),
    st.floats(0.001, 3600),
    st.floats(1, 10),
    st.floats(0.001, 86_400),
)


@given(rules, st.integers(1, 10_000), jitters)
def test_backoff_is_bounded_and_never_hot(rule, failures, jitter):
    wait_s = backoff_s(rule, failures, jitter)
    assert 0.1 * min(rule.base_s, rule.max_s) <= wait_s * 1.0001
    assert wait_s <= rule.max_s


@given(rules, st.integers(1, 50), jitters)
def test_backoff_never_shrinks_with_more_failures(rule, failures, jitter):
    assert backoff_s(rule, failures, jitter) <= backoff_s(rule, failures + 1, jitter)


@given(rules, st.floats(0, 366 * 24 * 3600), st.integers(0, 1000), jitters)
def test_retry_after_is_a_minimum(rule, seconds, failures, jitter):
    """INV14: jitter only adds."""
    failure = Failure("limited", "L", "l", seconds)
    wait_s = retry_in_s(rule, failure, failures, jitter)
    assert wait_s is not None
    assert seconds <= wait_s
    assert wait_s <= max(seconds + 1, rule.base_s)


@given(rules, st.integers(1, 200), jitters)
def test_a_transient_failure_uses_up_attempts(rule, failures, jitter):
    wait_s = retry_in_s(rule, Failure("transient", "T", "t"), failures, jitter)
    assert (wait_s is None) == (failures >= rule.max_attempts)


@given(rules, st.floats(0, 366 * 24 * 3600), jitters)
def test_a_fault_that_names_a_time_waits_for_it(rule, seconds, jitter):
    """INV14 for a 500 with Retry-After; it still uses up an attempt."""
    failure = classify(errors.Transient("t", retry_after_s=seconds))
    wait_s = retry_in_s(rule, failure, 1, jitter)
    assert (wait_s is None) == (rule.max_attempts == 1)
    assert wait_s is None or seconds <= wait_s <= max(seconds + 1, rule.max_s)


@given(rules, st.integers(0, 200), jitters)
def test_permanent_and_limited(rule, failures, jitter):
    assert retry_in_s(rule, Failure("permanent", "P", "p"), failures, jitter) is None
    assert retry_in_s(rule, Failure("limited", "L", "l"), failures, jitter)


@pytest.mark.parametrize(
    ("error", "category", "code"),
    [
        (errors.Transient("x"), "transient", "TRANSIENT"),
        (errors.Transient("x", code="CUT"), "transient", "CUT"),
        (errors.Permanent("x"), "permanent", "PERMANENT"),
        (errors.Invalid("x"), "permanent", "INVALID"),
        (errors.Denied("x"), "permanent", "DENIED"),
        (errors.UnknownOutcome("x"), "permanent", "UNKNOWN_OUTCOME"),
        (ValueError("x"), "permanent", "INTERNAL"),
        (KeyError(), "permanent", "INTERNAL"),
    ],
)
def test_classify(error, category, code):
    failure = classify(error)
    assert (failure.category, failure.code) == (category, code)
    assert failure.to_json()["message"]


def test_classify_keeps_what_a_limit_said():
    failure = classify(errors.Limited("slow", retry_after_s=3.5, scope="openai/key1", field="rpm"))
    assert failure == Failure("limited", "LIMITED", "slow", 3.5, "openai/key1", {"field": "rpm"})
    assert failure.to_json() == {
        "category": "limited",
        "code": "LIMITED",
        "message": "slow",
        "retry_after_s": 3.5,
        "scope": "openai/key1",
        "detail": {"field": "rpm"},
    }


def test_an_unnamed_error_is_cut_to_a_readable_length():
    assert len(classify(ValueError("x" * 10_000)).message) <= 500
