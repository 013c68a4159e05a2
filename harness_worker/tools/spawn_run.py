"""`spawn_run`: another agent works on a part of the goal in a run of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness_common.contracts.tool import StartChild, Tool, ToolContext
from harness_common.settings import Settings
from harness_worker.sdk import tool


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="idempotent")
    async def spawn_run(
        ctx: ToolContext,
        agent: Annotated[str, Field(min_length=1, max_length=64, description="Who does it.")],
        input: Annotated[
            str,
            Field(min_length=1, max_length=100_000, description="Everything it has to know."),
        ],
        max_tokens: Annotated[
            int | None, Field(ge=1, description="Its share of the tokens that are left.")
        ] = None,
        max_cost_usd: Annotated[
            float | None, Field(gt=0, description="Its share of the money that is left.")
        ] = None,
        on_failure: Annotated[
            Literal["collect", "fail"],
            Field(description="collect: tell me what went wrong; fail: fail this run as well."),
        ] = "collect",
    ) -> StartChild:
        """Give a part of the goal to another agent. Use it for work that stands on its own: several
        calls in one answer run side by side, and all results come back together, in your order.

        The other agent knows nothing of this conversation: say everything in input. It spends this
        run's budget; without a share, what is left is divided evenly.

        Returns the other agent's final answer; CHILD_FAILED with the reason when it failed.
        Limits: runs nest at most 5 deep.
        """
        del ctx
        return StartChild(
            agent, input,
            max_tokens=max_tokens, max_cost_usd=max_cost_usd, on_failure=on_failure,
        )  # fmt: skip

    return [spawn_run]
