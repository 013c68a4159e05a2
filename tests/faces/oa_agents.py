"""Agents of OpenAI Agents that an operator has registered."""

from __future__ import annotations

from agents import Agent, function_tool, handoff

from harness_worker.frameworks.agents_tools import effect
from tests.faces.graphs import append


@function_tool
async def note(line: str) -> str:
    """Write a line down."""
    return append(line)


@function_tool
async def look(what: str) -> str:
    """Look something up."""
    return f"seen {what}"


closer = Agent(name="closer", instructions="Close it.", tools=[])
noter = Agent(
    name="noter",
    instructions="Note it.",
    tools=[effect("read", look), note],
    handoffs=[handoff(closer)],
)
