"""When a server says that it may be asked again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

_LONGEST_S: Final = 366 * 24 * 3600.0


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After (RFC 9110, 10.2.3): seconds or a date; None when it says nothing."""
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit():
        seconds = float(value)
        return min(seconds, _LONGEST_S) if math.isfinite(seconds) else None
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError):
        return None
    since = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return min(max(0.0, (since - datetime.now(UTC)).total_seconds()), _LONGEST_S)
