"""Times as people type them: `2h` ago, or a date."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from harness_common.core.errors import Invalid

_AGO: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def moment(text: str | None, option: str) -> datetime | None:
    """Read `30m`, `2h`, `7d` (so long ago) or an ISO time, which is local without an offset.

    Raises `Invalid`.
    """
    if text is None:
        return None
    ago = _AGO.fullmatch(text.strip())
    if ago is not None:
        return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _SECONDS[ago[2]])
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Invalid(
            f"{option} takes 30m, 2h, 7d or a time such as 2026-01-31T12:00, not {text!r}",
            code="USAGE",
            field=option,
            value=text,
        ) from None
    return at.astimezone(UTC)
