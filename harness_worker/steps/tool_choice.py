"""Which tool the model must call in this step, if any."""

from __future__ import annotations

from collections.abc import Sequence

from harness_common.contracts.tool import ToolSpec
from harness_worker.steps.context import StepContext


def tool_choice(ctx: StepContext, offered: Sequence[ToolSpec]) -> str | None:
    """Return the agent's choice for this answer: the run's first one, or one of the others.

    A tool that is hidden from the model now cannot be forced either.
    """
    if ctx.spec.tool_choice is None:
        return None
    choice = ctx.spec.tool_choice.now(first=ctx.run.state.turn == 0)
    known = {"auto", "required", "none", *(tool.name for tool in offered)}
    return choice if choice in known else None
