"""A tool that whoever started the run carries out: the run waits without a worker for its answer.

Built for each step from the run's request (`contracts.request_options`); nothing happens here.
"""

from __future__ import annotations

from harness_common.contracts.request_options import ClientTool
from harness_common.contracts.tool import AskUser, EffectClass, Tool, ToolContext, ToolSpec
from harness_common.core.message import Json

QUESTION = "The client is to carry out {name} and answer with its result."


def client_tool(wanted: ClientTool) -> Tool:
    """Build the tool."""

    async def ask_the_client(ctx: ToolContext, /, **arguments: Json) -> AskUser:
        del ctx, arguments
        return AskUser(QUESTION.format(name=wanted.name))

    spec = ToolSpec(
        name=wanted.name,
        description=wanted.description or f"A function of the client: {wanted.name}.",
        input_schema=wanted.parameters,
        effect=EffectClass.IDEMPOTENT,
        version="client",
    )
    return Tool(spec, ask_the_client)
