"""What a graph's nodes import to use our tools: policy, approvals and the ledger stand before every
call, so that a `write` happens at most once though its node is run again.

    from harness_worker.frameworks.langgraph_tools import call_tool, harness_tools

    async def notify(state):
        await call_tool("send_mail", to=state["to"], text=state["text"])

    graph.add_node("tools", ToolNode(harness_tools(search, send_mail)))
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from langchain_core.tools import StructuredTool, ToolException
from langgraph.errors import GraphInterrupt
from langgraph.runtime import get_runtime
from langgraph.types import Interrupt

from harness_common.contracts.tool import Tool
from harness_common.core.message import Json
from harness_worker.frameworks.calls import CURRENT, Caller, Calls, NotSaid, ToolFailed

__all__ = ["ToolFailed", "call_tool", "call_tool_sync", "harness_tools"]

OURS: Final = "harness:"
"""How the ids of interrupts begin that a call of ours raises: the run knows what it waits for."""


async def call_tool(tool: str, /, **arguments: Json) -> str:
    """Call a tool that the run's agent declares; returns its result as text.

    Raises `ToolFailed` when the call ends without one. A call that waits (for an approval, an
    answer, a time) interrupts the node, which is run again when that has come.
    """
    calls, key = _place(tool, arguments)
    return await _call(calls, key, tool, arguments)


def call_tool_sync(tool: str, /, **arguments: Json) -> str:
    """Do what `call_tool` does, from a node that is no coroutine (it runs in a thread)."""
    calls, key = _place(tool, arguments)
    work = _call(calls, key, tool, arguments)
    return asyncio.run_coroutine_threadsafe(work, calls.loop).result()


def _place(tool: str, arguments: dict[str, Json]) -> tuple[Calls, str]:
    try:
        calls = CURRENT.get()
    except LookupError:
        raise RuntimeError(
            "tools of Harness can be called only while it runs the graph (kind: langgraph)"
        ) from None
    info = get_runtime().execution_info
    caller = Caller(info.task_id, info.node_attempt) if info else Caller("")
    return calls, calls.key(caller, tool, arguments)


async def _call(calls: Calls, key: str, tool: str, arguments: dict[str, Json]) -> str:
    try:
        return await calls.call(key, tool, arguments)
    except NotSaid as waits:
        raise GraphInterrupt((Interrupt(str(waits), OURS + key),)) from None


def harness_tools(*tools: Tool) -> list[StructuredTool]:
    """Return our tools as LangChain's, for `bind_tools` and `ToolNode`. A failure of a call is told
    to the model.
    """
    return [_as_langchain(tool) for tool in tools]


def _as_langchain(tool: Tool) -> StructuredTool:
    name = tool.spec.name

    async def arun(**arguments: Any) -> str:
        try:
            return await call_tool(name, **arguments)
        except ToolFailed as failed:
            raise ToolException(f"{failed.code}: {failed}") from failed

    def run(**arguments: Any) -> str:
        try:
            return call_tool_sync(name, **arguments)
        except ToolFailed as failed:
            raise ToolException(f"{failed.code}: {failed}") from failed

    return StructuredTool(
        name=name,
        description=tool.spec.description,
        args_schema=tool.spec.input_schema,
        coroutine=arun,
        func=run,
        handle_tool_error=True,
    )
