"""`skill_read`: the whole text of a skill, or one of its documents."""

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

    # Trusted, documents too: whoever put them into the skill vouches for them.
    @tool(effect="read")
    async def skill_read(
        ctx: ToolContext,
        name: Annotated[
            str, Field(min_length=1, max_length=64, description="A skill of this run.")
        ],
        document: Annotated[
            str | None,
            Field(max_length=200, description="A document's title; the skill itself without one."),
        ] = None,
    ) -> Json:
        """Read how a skill is done, or one of its documents. Use it before you use a skill of which
        you have seen only the description.

        Returns {skill, version, text}, with a document also its title.
        Limits: skills of this run only; text only.
        """
        return await ctx.skill(name, document)

    return [skill_read]
