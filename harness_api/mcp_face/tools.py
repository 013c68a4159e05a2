"""The tools of the MCP face."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Annotated, Any, Final

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import BaseModel, Field

from harness_api.client import AsyncClient
from harness_api.client.types import Run
from harness_common.core.errors import HarnessError

Connect = Callable[[Context[Any, Any]], AbstractAsyncContextManager[AsyncClient]]
"""Gives the client of whoever calls a tool."""

MAX_WAIT_S: Final = 300.0
_LOOK_S: Final = 2.0
"""How often a wait tells how far the run is."""
_READS: Final = ToolAnnotations(read_only_hint=True)
_INSTRUCTIONS: Final = """Runs of agents that may take minutes or days, and survive any crash.
Submit one with submit_run, then call wait_run until it is over or needs you. A run that asks
something (questions is not empty) goes on after answer_run. What waits for an approval is for a
person to decide, not for you."""

RunId = Annotated[str, Field(pattern="^run_[0-9a-f]{32}$", description="A run's id: run_…")]


class Question(BaseModel):
    """Something that a run asks."""

    call: str
    question: str
    choices: list[str] = Field(default_factory=list)


class RunShown(BaseModel):
    """A run as an agent client needs it."""

    run_id: str
    session_id: str
    agent: str
    status: str
    over: bool
    step: int
    output: str | None = None
    error: str | None = None
    questions: list[Question] = Field(default_factory=list)
    """Answer them with answer_run."""
    waits_for: str | None = None


class AgentShown(BaseModel):
    """An agent that runs can be submitted to."""

    name: str
    version: int
    kind: str
    description: str


def show(run: Run) -> RunShown:
    """Show a run."""
    waiting = run.waiting or {}
    calls = [c for c in waiting.get("calls") or () if isinstance(c, dict)]
    return RunShown(
        run_id=run.id,
        session_id=run.session_id,
        agent=f"{run.agent.name}@{run.agent.version}",
        status=run.status,
        over=run.is_over,
        step=run.step,
        output=run.output,
        error=str(run.error.get("message") or run.stop_reason) if run.error else None,
        questions=[
            Question(call=c["call"], question=c["question"], choices=c.get("choices") or [])
            for c in calls
            if c.get("kind") == "input"
        ],
        waits_for=waiting.get("for"),
    )


def make_server(connect: Connect) -> MCPServer[Any]:
    """Build the server; `connect` says on whose behalf a tool acts."""
    server: MCPServer[Any] = MCPServer("harness", instructions=_INSTRUCTIONS)
    tools = _Tools(connect)
    for reads in (tools.list_agents, tools.get_run, tools.wait_run):
        server.add_tool(reads, annotations=_READS)
    for writes in (tools.submit_run, tools.answer_run):
        server.add_tool(writes)
    stops = ToolAnnotations(destructive_hint=True, idempotent_hint=True)
    server.add_tool(tools.cancel_run, annotations=stops)
    return server


class _Tools:
    """What an agent client may do; the docstrings are what it reads."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect

    @asynccontextmanager
    async def _client(self, ctx: Context[Any, Any]) -> AsyncIterator[AsyncClient]:
        try:
            async with self._connect(ctx) as client:
                yield client
        except HarnessError as error:
            raise ToolError(f"{error.error_code}: {error.message}") from error

    async def list_agents(self, ctx: Context[Any, Any]) -> list[AgentShown]:
        """List the agents that runs can be submitted to."""
        async with self._client(ctx) as client:
            return [
                AgentShown(
                    name=agent.name,
                    version=agent.version,
                    kind=str(agent.spec.get("kind", "agent")),
                    description=str(agent.spec.get("description", "")),
                )
                async for agent in client.agents.list(limit=500)
            ]

    async def submit_run(
        self,
        ctx: Context[Any, Any],
        agent: Annotated[str, Field(description="An agent's name, or NAME@VERSION.")],
        input: Annotated[str, Field(min_length=1, description="What it is to do, in full.")],
        session_id: Annotated[
            str | None, Field(description="Go on in this session: the run knows what was said.")
        ] = None,
        idempotency_key: Annotated[
            str | None, Field(description="The same key with the same input gives the same run.")
        ] = None,
    ) -> RunShown:
        """Start a run of an agent and return at once; wait for it with wait_run."""
        name, _, version = agent.partition("@")
        if version and not version.isdecimal():
            raise ToolError(f"{agent!r} is no agent; write NAME or NAME@VERSION")
        async with self._client(ctx) as client:
            run = await client.runs.create(
                name,
                input,
                agent_version=int(version) if version else None,
                session_id=session_id,
                idempotency_key=idempotency_key,
            )
            return show(run)

    async def get_run(self, ctx: Context[Any, Any], run_id: RunId) -> RunShown:
        """Look at a run as it is now."""
        async with self._client(ctx) as client:
            return show(await client.runs.get(run_id))

    async def wait_run(
        self,
        ctx: Context[Any, Any],
        run_id: RunId,
        timeout_s: Annotated[float, Field(gt=0, le=MAX_WAIT_S)] = 60.0,
    ) -> RunShown:
        """Wait until a run is over or needs somebody, for timeout_s at most; call it again if it is
        not over then.
        """
        until = time.monotonic() + timeout_s
        async with self._client(ctx) as client:
            while True:
                left_s = until - time.monotonic()
                try:
                    return show(await client.runs.wait(run_id, max(0.0, min(_LOOK_S, left_s))))
                except TimeoutError:
                    run = await client.runs.get(run_id)
                if time.monotonic() >= until:
                    return show(run)
                await ctx.report_progress(timeout_s - left_s, timeout_s, f"step {run.step}")

    async def answer_run(
        self,
        ctx: Context[Any, Any],
        run_id: RunId,
        text: Annotated[str, Field(min_length=1)],
        call: Annotated[
            str | None, Field(description="Which question, if the run asks several.")
        ] = None,
    ) -> RunShown:
        """Answer what a run asks; then wait for it again."""
        async with self._client(ctx) as client:
            return show(await client.runs.answer(run_id, text, call))

    async def cancel_run(self, ctx: Context[Any, Any], run_id: RunId, reason: str = "") -> RunShown:
        """Ask a run to stop. Safe to repeat."""
        async with self._client(ctx) as client:
            return show(await client.runs.cancel(run_id, reason))
