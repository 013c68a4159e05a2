"""`ask_user`: a question to a person. The run waits without a worker; the answer is the result."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness_common.contracts.tool import AskUser, Tool, ToolContext
from harness_common.settings import Settings
from harness_worker.sdk import tool


def build(settings: Settings) -> list[Tool]:
    """Build the tool; it has no settings."""
    del settings

    @tool(effect="idempotent")
    async def ask_user(
        ctx: ToolContext,
        question: Annotated[
            str, Field(min_length=1, max_length=4000, description="What to ask, in full.")
        ],
        choices: Annotated[
            list[Annotated[str, Field(min_length=1, max_length=200)]] | None,
            Field(max_length=20, description="The possible answers, if there are only some."),
        ] = None,
        timeout_s: Annotated[
            float | None,
            Field(gt=0, le=31 * 86_400, description="How long to wait for the answer."),
        ] = None,
    ) -> AskUser:
        """Ask the person whom this run is for. Use it when something is missing that only a person
        knows or may decide, and not for what another tool can find out.

        Ask one clear question at a time. With choices the answer is one of them. The run rests
        until somebody answers, at no cost.

        Returns the answer as text; INPUT_TIMEOUT when nobody answered within timeout_s.
        """
        del ctx
        return AskUser(question, tuple(choices or ()), timeout_s)

    return [ask_user]
