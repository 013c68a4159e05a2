"""Repairs of answers, as the client returns them."""

from __future__ import annotations

from pydantic import Field

from harness_api.client.types.view import View


class RepairCount(View):
    """How often answers of an agent's model took one kind of repair."""

    agent: str
    model: str = ""
    kind: str
    repairs: int = 0
    answers: int = 0


class RepairStats(View):
    """The repairs of one month (UTC)."""

    month: str
    repairs: int = 0
    kinds: dict[str, int] = Field(default_factory=dict)
    data: tuple[RepairCount, ...] = ()
