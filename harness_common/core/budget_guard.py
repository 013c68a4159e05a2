"""Tells a model that what its run may use is nearly used up, so that it ends well by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from harness_common.core import events as ev
from harness_common.core.budget import Limits
from harness_common.core.events import Event
from harness_common.core.guidance import NOTHING, Guidance
from harness_common.core.hints import hint
from harness_common.core.message import Json

WARNED: Final = "warned"
"""The key of `RunState.memo`: what the model was warned of; once each."""
_FEWEST_TURNS: Final = 5
"""With fewer there is no room between a warning and the end."""


def warn(
    memo: Mapping[str, Json],
    limits: Limits,
    *,
    turns: int,
    tokens: int,
    cost_usd: float,
    at: float,
    step: int,
) -> Guidance:
    """Warn of each budget of which the share `at` is used, and something is left."""
    warned: list[str] = list(memo.get(WARNED, ()))
    used: dict[str, tuple[float, float]] = {}
    if limits.max_turns >= _FEWEST_TURNS:
        used["turns"] = (turns, limits.max_turns)
    if limits.max_tokens is not None:
        used["tokens"] = (tokens, limits.max_tokens)
    if limits.max_cost_usd is not None:
        used["cost_usd"] = (cost_usd, limits.max_cost_usd)
    due = {
        name: pair
        for name, pair in used.items()
        if name not in warned and _mark(*pair, at) <= pair[0] < pair[1]
    }
    if not due:
        return NOTHING
    said = "; ".join(_words(name, *pair) for name, pair in due.items())
    text = (
        f"{said[0].upper()}{said[1:]}. When it is used up the run ends at once, without an answer. "
        "Do only what is needed most, and give your final answer in time."
    )
    events = tuple(
        Event(
            ev.GUARD_HINTED,
            {"guard": "budget", "budget": name, "used": pair[0], "limit": pair[1]},
            step,
        )
        for name, pair in due.items()
    )
    return Guidance((hint(text),), events, {WARNED: [*warned, *due]})


def _mark(_: float, limit: float, at: float) -> float:
    """Return from where on to warn; whole numbers are rounded down, so that something is left."""
    mark = limit * at
    return math.floor(mark + 1e-9) if isinstance(limit, int) else mark


def _words(name: str, used: float, limit: float) -> str:
    match name:
        case "turns":
            left = int(limit - used)
            return f"you have {left} answer{'s' if left != 1 else ''} left of {limit:g}"
        case "tokens":
            return f"this run has used {used:g} of its {limit:g} tokens"
        case _:
            return f"this run has used {used:.4g} of its {limit:.4g} USD"
