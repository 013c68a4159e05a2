"""Other agents as tools of an agent: `agent__NAME` works in a run of its own, `transfer_to_NAME`
takes the run over. Both are bound to the version that the other agent has when the step starts.

Called by the steps, which know how often the run was handed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from harness_common.contracts.tool import StartChild, Tool, ToolContext
from harness_common.core.errors import Invalid
from harness_common.core.handoff import AGENT_TOOL, agent_of, is_agent_tool
from harness_common.store.db import Database
from harness_worker.sdk import tool

_MISSING: Final = 0
"""The version of an agent that there is not."""


async def agent_tools(
    db: Database, tenant_id: UUID, names: Sequence[str], *, handoffs_left: int
) -> list[Tool]:
    """Return the tools that are agents, of those named; one whose agent is missing says so."""
    agents = {name: agent_of(name) for name in names if is_agent_tool(name)}
    if not agents:
        return []
    found = await db.fetch(
        "agents_newest", {"tenant_id": tenant_id, "names": sorted(set(agents.values()))}
    )
    known = {row["name"]: row for row in found}
    tools = []
    for name, agent in agents.items():
        row = known.get(agent) or {"version": _MISSING, "description": ""}
        version, about = row["version"], row["description"]
        if name.startswith(AGENT_TOOL):
            tools.append(_ask(name, agent, version, about))
        else:
            tools.append(_transfer(name, agent, version, about, handoffs_left))
    return tools


def _check(agent: str, version: int) -> None:
    if version == _MISSING:
        raise Invalid(
            f"there is no agent {agent!r} here; do this yourself or say that it cannot be done",
            code="AGENT_NOT_FOUND",
            agent=agent,
        )


def _ask(name: str, agent: str, version: int, about: str) -> Tool:
    text = f"""Let the agent {agent} do a part of the work, in a run of its own. {about}

        It knows nothing of this conversation: say everything it has to know in input. Several calls
        in one answer run side by side. It spends this run's budget. Returns its final answer;
        CHILD_FAILED with the reason when it failed.
        """

    @tool(effect="idempotent", name=name, description=text, version=str(version))
    async def ask(
        ctx: ToolContext,
        input: Annotated[
            str,
            Field(min_length=1, max_length=100_000, description="Everything it has to know."),
        ],
    ) -> StartChild:
        del ctx
        _check(agent, version)
        return StartChild(agent, input, agent_version=version)

    return ask


def _transfer(name: str, agent: str, version: int, about: str, left: int) -> Tool:
    text = f"""Hand this conversation over to the agent {agent}, who goes on in your place and sees
        all of it. {about}

        Call it alone, when {agent} is the right one for what is asked; you do not come back unless
        you are handed the conversation again.
        """

    @tool(effect="read", name=name, description=text, version=str(version))
    async def transfer(
        ctx: ToolContext,
        reason: Annotated[
            str, Field(max_length=2_000, description="Why, and what is still to be done.")
        ] = "",
    ) -> str:
        del ctx, reason
        _check(agent, version)
        if left <= 0:
            raise Invalid(
                "this run was handed over as often as it may be (loop_guards.max_handoffs); finish "
                "it yourself with what you know",
                code="HANDOFFS_USED_UP",
                field="loop_guards.max_handoffs",
            )
        return f"The conversation is now with {agent}."

    return transfer
