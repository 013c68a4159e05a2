"""What is around a run, on the wire."""

from __future__ import annotations

from typing import Any, Literal

from harness_api.schemas.base import Output, Time
from harness_api.schemas.runs import AgentRef, EndReason, ShownStatus


class Relative(Output):
    """A run near another one. `step` is the checkpoint that a retry or fork began at."""

    run_id: str
    relation: Literal["parent", "forked_from", "child", "retry", "fork"]
    status: ShownStatus
    agent: AgentRef
    stop_reason: EndReason | None
    call: str | None
    step: int | None
    overrides: dict[str, Any]
    created_at: Time


class LineageView(Output):
    """The runs above one, nearest first, and those below it; at most 100 of each kind."""

    run_id: str
    ancestors: list[Relative]
    children: list[Relative]
    forks: list[Relative]
