"""Function tools of OpenAI Agents behind our policy and ledger.

A tool is a `write` unless the operator says otherwise when building the agent:

    agent = Agent(name="a", tools=[effect("read", look_up), send_mail])
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, Literal

from agents import Agent, FunctionTool
from agents.tool_context import ToolContext as AgentsContext

from harness_common.contracts.tool import EffectClass, Tool, ToolContext, ToolOutput, ToolSpec
from harness_common.core.message import Json
from harness_worker.frameworks.calls import CURRENT, WITHIN, Caller, NotSaid, ToolFailed
from harness_worker.models.tool_args import parse_arguments

__all__ = ["as_tool", "effect", "guarded"]

_EFFECT: Final = "_harness_effect"
_ORIGINAL: Final = "_harness_original"
Invoke = Callable[[AgentsContext[Any], str], Awaitable[Any]]
_INVOKED: ContextVar[AgentsContext[Any]] = ContextVar("harness_invoked")


def effect(kind: Literal["read", "idempotent", "write"], tool: FunctionTool) -> FunctionTool:
    """Say what a function tool does to the outside; returns the tool."""
    setattr(tool, _EFFECT, kind)
    return tool


def guarded(agent: Agent[Any]) -> None:
    """Put the ledger before every function tool of an agent. Outside of a run they work as ever."""
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and not hasattr(tool, _ORIGINAL):
            setattr(tool, _ORIGINAL, tool.on_invoke_tool)
            tool.on_invoke_tool = _behind_the_ledger(tool.name, tool.on_invoke_tool)


def _behind_the_ledger(name: str, original: Invoke) -> Invoke:
    async def invoke(ctx: AgentsContext[Any], arguments: str) -> Any:  # noqa: ANN401
        calls = CURRENT.get(None)
        if calls is None:
            return await original(ctx, arguments)
        given, raw = parse_arguments(arguments or "{}")
        if raw is not None:
            return f"Error (INVALID_ARGUMENTS): the arguments are no JSON object: {raw[:200]}"
        _INVOKED.set(ctx)
        within = f"{WITHIN.get()}{ctx.tool_call_id}"
        key = calls.key(Caller(within), name, given)
        token = WITHIN.set(f"{within}/")
        try:
            return await calls.call(key, name, given)
        except ToolFailed as failed:
            return f"Error ({failed.code}): {failed}"
        except NotSaid:
            # Whoever waits is known to `calls`; the turn is not kept, so nobody reads this.
            return ""
        finally:
            WITHIN.reset(token)

    return invoke


def as_tool(tool: FunctionTool) -> Tool:
    """Return a function tool as one of ours, for policy and ledger."""
    original: Invoke = getattr(tool, _ORIGINAL)

    async def run(ctx: ToolContext, /, **arguments: Json) -> ToolOutput:
        del ctx
        return ToolOutput(await original(_INVOKED.get(), json.dumps(arguments)))

    spec = ToolSpec(
        name=tool.name,
        description=tool.description or f"The function {tool.name}.",
        input_schema=tool.params_json_schema,
        effect=EffectClass(getattr(tool, _EFFECT, "write")),
        version="openai-agents",
    )
    return Tool(spec, run)
