"""`memory_forget`: deletes a fact for good."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import Tool, ToolContext
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="write", repeatable=True)
    async def memory_forget(
        ctx: ToolContext,
        memory_id: Annotated[
            str, Field(pattern=r"^mem_[0-9a-f]{32}$", description="The fact's id, mem_….")
        ],
    ) -> Json:
        """Forget a remembered fact for good. Use it when the user asks to, or when a fact turned
        out to be wrong; find its id with memory_search.

        Returns {forgotten}: false when there is no such fact of this user.
        Limits: this user's facts only, not those that all users share.
        """
        return {"forgotten": await ctx.memory.forget(memory_id)}

    return [memory_forget]
