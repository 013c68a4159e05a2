"""`memory_save`: keeps a fact for later runs, if what was said in this session supports it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness_common.contracts.memory import MAX_CHARS, Kind
from harness_common.contracts.tool import Tool, ToolContext
from harness_common.core.message import Json
from harness_common.settings import Settings
from harness_worker.sdk import tool


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    # A write: a run that has read untrusted content asks a person first (`core.policy`).
    @tool(effect="write")
    async def memory_save(
        ctx: ToolContext,
        text: Annotated[
            str,
            Field(
                min_length=1,
                max_length=4 * MAX_CHARS,
                description="The fact in a sentence that is clear on its own.",
            ),
        ],
        quote: Annotated[
            str,
            Field(
                min_length=1,
                max_length=1_000,
                description="The very words of the user or of a tool's result it rests on.",
            ),
        ],
        kind: Annotated[
            Kind,
            Field(
                description="preference: what the user likes; fact: what is so; decision: what was "
                "settled; instruction: what to do from now on."
            ),
        ] = "fact",
        expires_days: Annotated[
            int | None, Field(ge=1, le=36_500, description="Forget it after so many days.")
        ] = None,
    ) -> Json:
        """Remember a fact for later runs with this user. Use it for what will still matter then,
        and that the user or a tool has said in this conversation: quote them.

        Not for secrets, whole documents, passing details or your own conclusions: these are
        refused. A fact that is known already is only confirmed.

        Returns {id, made, trust, expires_at}: made is false for a fact that was known.
        Limits: 500 characters; FACT_UNVERIFIED when nobody said the quote.
        """
        saved = await ctx.memory.save(text, kind=kind, quote=quote, expires_days=expires_days)
        ends = saved.expires_at.isoformat() if saved.expires_at else None
        return {"id": saved.id, "made": saved.made, "trust": saved.trust, "expires_at": ends}

    return [memory_save]
