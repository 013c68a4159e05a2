"""What one run may use, pinned at its creation, and the checks against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Final

from harness_common.core.errors import Permanent
from harness_common.core.message import Json
from harness_common.core.stop_reasons import StopReason

PRESETS: Final = {"retrieval": 8, "data": 20, "orchestration": 30}
"""Iteration caps by kind of agent: about twice what such a run needs."""


MAX_DEPTH: Final = 5
"""How deep runs may start runs."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps of one run; None is no cap."""

    max_turns: int = PRESETS["data"]
    max_tokens: int | None = None
    max_cost_usd: float | None = None
    deadline: datetime | None = None
    """Wall-clock end of the run, by Postgres time."""

    def to_json(self) -> Json:
        """Write the caps as JSON."""
        return {
            "max_turns": self.max_turns,
            "max_tokens": self.max_tokens,
            "max_cost_usd": self.max_cost_usd,
            "deadline": self.deadline.isoformat() if self.deadline else None,
        }

    @staticmethod
    def from_json(data: Json) -> Limits:
        """Read what `to_json` wrote."""
        deadline = data.get("deadline")
        return Limits(
            data["max_turns"],
            data.get("max_tokens"),
            data.get("max_cost_usd"),
            datetime.fromisoformat(deadline) if deadline else None,
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """What answers of models have cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def tokens(self) -> int:
        """Return the tokens in and out together, which is what a cap counts."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Spent) -> Spent:
        """Return what both have cost."""
        return Spent(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost_usd + other.cost_usd,
        )

    def __sub__(self, other: Spent) -> Spent:
        """Return this without the part `other`; what binary fractions leave is nothing."""
        return Spent(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            round(self.cost_usd - other.cost_usd, 12),
        )


FREE: Final = Spent()


def is_shared(limit: float | None, own: float | None) -> bool:
    """Tell whether a cap of a run is its parent's: what it has is less than its agent allows."""
    return limit is not None and (own is None or limit < own)


def spent_by(detail: Json) -> Spent:
    """Return what an error says that answers before it have cost.

    They are in its detail as `spent`: `input_tokens`, `output_tokens`, `cost_usd`. The step that it
    ends has no other record of them.
    """
    spent = detail.get("spent") if isinstance(detail, Mapping) else None
    if not isinstance(spent, Mapping):
        return FREE
    tokens = int(spent.get("input_tokens", 0)), int(spent.get("output_tokens", 0))
    return Spent(*tokens, float(spent.get("cost_usd", 0.0)))


def spent_on(call: Mapping[str, Json]) -> Spent:
    """Return what a call has cost by its row of the ledger."""
    return Spent(call["input_tokens"], call["output_tokens"], call["cost_usd"] or 0.0)


def with_spent(detail: Mapping[str, Json], spent: Spent) -> Mapping[str, Json]:
    """Return the detail of an error with what `spent_by` reads of it."""
    return detail if spent == FREE else {**detail, "spent": asdict(spent)}


def exceeded(limits: Limits, tokens: int, cost_usd: float) -> StopReason | None:
    """Name the cap that is used up, as a stop reason; None while there is room."""
    if limits.max_tokens is not None and tokens >= limits.max_tokens:
        return StopReason.TOKEN_BUDGET
    if limits.max_cost_usd is not None and cost_usd >= limits.max_cost_usd:
        return StopReason.COST_BUDGET
    return None


def require_left(limits: Limits, spent: Spent) -> None:
    """Raise `Permanent` when a cap is used up, before a model is asked once more in the same step;
    its code is the stop reason of the run that ends by it.
    """
    if (reason := exceeded(limits, spent.tokens, spent.cost_usd)) is not None:
        raise Permanent("the model was not asked: the budget is used up", code=reason.upper())
