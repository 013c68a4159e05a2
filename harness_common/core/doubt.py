"""What a run remembers of its contract: how often an answer was asked for again, whether the answer
itself comes next, and which calls of the step to come are doubtful.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harness_common.core.message import Json

CONTRACT: Final = "contract"
"""The memo's key."""


def doubt_about(memo: Mapping[str, Json], index: int) -> str | None:
    """Return why a person should confirm the call of this index; None when nobody needs to."""
    doubts = (memo.get(CONTRACT) or {}).get("doubt") or {}
    return doubts.get(str(index))
