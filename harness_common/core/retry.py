"""What follows from a failed attempt: when to try again, or that trying again is pointless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.step import Failure


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and how patiently one step is tried. Times in seconds."""

    max_attempts: int = 5
    base_s: float = 1.0
    factor: float = 2.0
    max_s: float = 60.0


def backoff_s(rule: RetryRule, failures: int, jitter: float) -> float:
    """Return the wait before the next attempt: exponential, with full jitter.

    `failures` counts this one (1 for the first); `jitter` is drawn by the caller from [0, 1). The
    wait is at least a tenth of the full step, so that a run of small draws is not a hot loop.
    """
    full = min(rule.max_s, rule.base_s * rule.factor ** min(failures - 1, 30))
    return full * max(0.1, jitter)


def retry_in_s(rule: RetryRule, failure: Failure, failures: int, jitter: float) -> float | None:
    """Decide the wait before the next attempt, or None when the run has to fail.

    A limit is not a fault of the run: it never uses up attempts, and Retry-After is a minimum.
    `failures` counts this failure when it is transient.
    """
    match failure.category:
        case "permanent":
            return None
        case "limited":
            patience = backoff_s(rule, max(1, failures), jitter)
            if failure.retry_after_s is None:
                return patience
            if failure.permit is not None:
                return failure.retry_after_s  # a slot of its own, jitter included
            # "Retry-After: 0" is no leave for a hot loop.
            return max(_not_before_s(failure.retry_after_s, jitter), 0.1 * rule.base_s)
        case "transient":
            if failures >= rule.max_attempts:
                return None
            backoff = backoff_s(rule, failures, jitter)
            return max(backoff, _not_before_s(failure.retry_after_s or 0.0, jitter))
        case other:
            assert_never(other)


def _not_before_s(retry_after_s: float, jitter: float) -> float:
    """Return the wait for a Retry-After. Jitter is added, never taken away: nobody calls before it
    (INV14).
    """
    return retry_after_s + min(1.0, 0.1 * retry_after_s) * jitter


def classify(error: BaseException) -> Failure:
    """Turn an exception of a step into a `Failure`; an exception that nobody named is permanent.

    A programming error does not become better by repetition, and repeating it would hide it.
    """
    match error:
        case Limited():
            return Failure(
                "limited",
                error.error_code,
                error.message,
                error.retry_after_s,
                error.scope,
                dict(error.detail) or None,
                dict(error.permit) if error.permit else None,
            )
        case Transient():
            return Failure(
                "transient",
                error.error_code,
                error.message,
                error.detail.get("retry_after_s"),
                detail=dict(error.detail) or None,
            )
        case Permanent() | HarnessError():
            return Failure(
                "permanent", error.error_code, error.message, detail=dict(error.detail) or None
            )
        case _:
            return Failure("permanent", "INTERNAL", f"{type(error).__name__}: {error}"[:500])
