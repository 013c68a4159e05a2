"""What a model saw in a step, on the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from harness_api.schemas.base import Output
from harness_common.core.message import Json

StepNumber = Annotated[int, Field(ge=1, lt=2**31, description="A model step of the run.")]


class ContextTokens(Output):
    """How large a prompt was. Estimates; `ratio` is how much the model's own count differs."""

    total: int
    """Estimated, times `ratio`."""
    limit: int
    """The most it may be before older messages are compacted."""
    ratio: float
    by: dict[str, int]
    """Estimated tokens by part: system, tools, summary, history, said, answers, results, notes."""
    reported_input: int
    """What the provider counted; our estimate where it reports nothing."""
    reported_output: int


class ContextMessage(Output):
    """One message as it was sent."""

    n: int | None
    """Its number in `run_id`; null for one that is nowhere stored: the answer to a call that an
    earlier run left open.
    """
    run_id: str
    role: str
    kind: str
    """said, answers, results, summary, notes or history."""
    trust: str
    tokens: int
    content: list[dict[str, Any]]


class ContextTool(Output):
    """A tool as it was offered."""

    name: str
    description: str
    input_schema: Json


class LeftOut(Output):
    """Something that was not shown, and why."""

    what: str
    count: int
    why: str
    step: int | None
    """The compaction that left it out."""


class ContextView(Output):
    """What a model saw in one step: put together again from what is stored, byte for byte."""

    run_id: str
    step: int
    model: str
    tokens: ContextTokens
    system: str
    tools: list[ContextTool]
    messages: list[ContextMessage]
    left_out: list[LeftOut]
