"""Read when a provider allows the next call, from all the header forms in use.

Used by the error classifiers of the providers. Nobody here waits: the answer goes into
`Limited.retry_after_s`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from harness_common.core.throttle import Rate

MAX_WAIT_S: Final = 366 * 24 * 3600.0
"""An absurd value is cut to a year, so that adding it to a date cannot overflow."""

_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])")
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the least seconds to wait, or None when the provider named no time.

    Looks at `retry-after-ms`, then `Retry-After` (seconds, also with a fraction, or an HTTP date:
    RFC 9110 section 10.2.3), then the reset time of any exhausted `x-ratelimit-*`. A date is read
    against the server's own `Date`, so that clocks need not agree. `headers` must look names up
    without regard to case.
    """
    if (wait_ms := _number(headers.get("retry-after-ms"))) is not None:
        return _bounded(wait_ms / 1000)
    if value := headers.get("retry-after"):
        if (seconds := _number(value)) is not None:
            return _bounded(seconds)
        if (date := _date(value)) is not None:
            since = _date(headers.get("date")) or now
            return _bounded((date - since).total_seconds())
    resets = [
        _duration(headers.get(f"x-ratelimit-reset-{what}"))
        for what in ("requests", "tokens")
        if headers.get(f"x-ratelimit-remaining-{what}", "").strip() == "0"
    ]
    return max((_bounded(s) for s in resets if s is not None), default=None)


def should_retry(headers: Mapping[str, str]) -> bool | None:
    """Return what `x-should-retry` says, or None when it says nothing."""
    return {"true": True, "false": False}.get(headers.get("x-should-retry", "").strip().lower())


def rate_of(headers: Mapping[str, str]) -> Rate | None:
    """Return the provider's limit on requests, or None when no `x-ratelimit-*-requests` says it.

    The reset is when the bucket is full again, so that what is used of it over the time to the
    reset is the rate, whatever period the limit is for.
    """
    limit = _number(headers.get("x-ratelimit-limit-requests"))
    left = _number(headers.get("x-ratelimit-remaining-requests"))
    if limit is None or left is None:
        return None
    reset_s = _duration(headers.get("x-ratelimit-reset-requests"))
    used = limit - left
    per_s = used / reset_s if reset_s and used > 0 and reset_s > 0 else None
    return Rate(per_s if per_s is not None and math.isfinite(per_s) else None, left <= 0)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _bounded(seconds: float) -> float:
    return min(max(seconds, 0.0), MAX_WAIT_S)


def _date(text: str | None) -> datetime | None:
    if not text:
        return None
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _duration(text: str | None) -> float | None:
    """Read `1s`, `6m0s`, `120ms` or plain seconds."""
    text = (text or "").strip()
    if (seconds := _number(text)) is not None:
        return seconds
    parts = _PART.findall(text)
    if not parts or "".join(n + u for n, u in parts) != text:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)
