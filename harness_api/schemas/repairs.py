"""Repairs of answers on the wire."""

from __future__ import annotations

from harness_api.schemas.base import Output


class RepairCount(Output):
    """How often answers of an agent's model took one kind of repair."""

    agent: str
    model: str
    kind: str
    repairs: int
    answers: int
    """Answers that took at least one of this kind."""


class RepairStats(Output):
    """The repairs of one month (UTC), the most frequent first."""

    month: str
    repairs: int
    kinds: dict[str, int]
    data: list[RepairCount]
