"""The MCP tools of tenants as a `ToolSource`: found by name, called on pooled connections.

Only what the tenant has accepted is offered, and a call goes out only while the server still lists
exactly that. Everything else is a tool that says what is wrong, in our words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import mcp_types as types
import structlog
from mcp import MCPError

from harness_common.contracts.tool import (
    EffectClass,
    NeedInput,
    Tool,
    ToolContext,
    ToolOutput,
    ToolSpec,
)
from harness_common.core.errors import Denied
from harness_common.core.mcp import SEPARATOR, WILDCARD, ToolState, wildcards
from harness_common.core.message import Json
from harness_common.store.db import Database
from harness_common.store.mcp_tools import (
    KnownTool,
    Server,
    accepted_names,
    find_servers,
    find_tools,
)
from harness_worker.mcp import conversation
from harness_worker.mcp.checks import check
from harness_worker.mcp.connection import Call, Connection, Disturbed
from harness_worker.mcp.faults import ConnectionLost, SessionGone, Unavailable, answered, lost
from harness_worker.mcp.listing import CALL_TIMEOUT_S, spec_of
from harness_worker.mcp.pool import Pool
from harness_worker.mcp.results import output_of

_WHY: Final = {
    ToolState.NEW: (
        "MCP_TOOL_NOT_ACCEPTED",
        "nobody has accepted this tool of the MCP server yet",
    ),
    ToolState.CHANGED: (
        "MCP_TOOL_CHANGED",
        "the MCP server has changed this tool since it was accepted",
    ),
    ToolState.GONE: ("MCP_TOOL_GONE", "the MCP server no longer has this tool"),
    ToolState.REFUSED: (
        "MCP_TOOL_REFUSED",
        "the MCP server's definition of this tool cannot be used",
    ),
}
log = structlog.get_logger()

_MAX_EMPTY_ROUNDS: Final = 10
_EMPTY_ROUND_S: Final = 0.2


class McpTools:
    """The tools of all MCP servers that tenants have declared."""

    def __init__(self, db: Database, pool: Pool) -> None:
        self._db, self._pool = db, pool
        self._checks: set[asyncio.Task[bool]] = set()

    async def find(self, tenant_id: UUID, names: Sequence[str]) -> list[Tool]:
        """Return the tenant's tools of these names; a server that was never listed is asked now.

        Raises `Unavailable` when that fails.
        """
        wanted = [name for name in names if SEPARATOR in name]
        if not wanted:
            return []
        known = {tool.exposed: tool for tool in await find_tools(self._db, tenant_id, wanted)}
        missing = [name for name in wanted if name not in known]
        servers = await self._list_unlisted(tenant_id, missing)
        if any(server.listed_at is None for server in servers.values()):
            known |= {tool.exposed: tool for tool in await find_tools(self._db, tenant_id, missing)}
        tools = [self._tool(tool) for tool in known.values()]
        return tools + [
            _stub(name, ToolState.GONE)
            for name in missing
            if name not in known and name.partition(SEPARATOR)[0] in servers
        ]

    async def expand(self, tenant_id: UUID, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names with each `server__*` replaced by the server's accepted tools."""
        servers = wildcards(names)
        if not servers:
            return tuple(names)
        await self._list_unlisted(tenant_id, [s + WILDCARD for s in servers])
        accepted = await accepted_names(self._db, tenant_id, servers)
        found: dict[str, None] = {}
        for name in names:
            many = accepted.get(name.removesuffix(WILDCARD)) if name.endswith(WILDCARD) else [name]
            found.update(dict.fromkeys(many or ()))
        return tuple(found)

    def wish(self, tenant_id: UUID, server_id: UUID) -> None:
        """Look at a server behind the scenes, because somebody asked for it."""
        task = asyncio.create_task(check(self._db, self._pool, tenant_id, server_id))
        self._checks.add(task)
        task.add_done_callback(self._looked)

    def _looked(self, task: asyncio.Task[bool]) -> None:
        self._checks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("mcp.check_failed", error=str(error))  # who waits asks again

    async def aclose(self) -> None:
        """Close all connections."""
        for task in self._checks:
            task.cancel()
        await self._pool.aclose()

    async def _list_unlisted(self, tenant_id: UUID, names: Sequence[str]) -> dict[str, Server]:
        """List the servers of these names for the first time, where that has not been done."""
        prefixes = sorted({name.partition(SEPARATOR)[0] for name in names})
        if not prefixes:
            return {}
        servers = await find_servers(self._db, tenant_id, prefixes)
        for server in servers:
            if server.listed_at is None:
                await self._pool.get(server)
        return {server.name: server for server in servers}

    def _tool(self, known: KnownTool) -> Tool:
        if known.accepted is None or known.state in {ToolState.NEW, ToolState.REFUSED}:
            return _stub(known.exposed, known.state)
        spec = spec_of(
            known.server,
            known.name,
            known.exposed,
            known.accepted,
            spare_s=3 * self._pool.outside.settings.connect_s,  # connecting, twice, and its turn
        )

        async def fn(ctx: ToolContext, /, **arguments: Json) -> ToolOutput | NeedInput:
            if known.state is not ToolState.READY:
                raise _refusal(known.server.name, known.name, known.state)
            return await self._call(known, spec.effect, ctx, arguments)

        return Tool(spec, fn, {"mcp": known.server.name})

    async def _call(
        self, known: KnownTool, effect: EffectClass, ctx: ToolContext, arguments: dict[str, Json]
    ) -> ToolOutput | NeedInput:
        server, kept = known.server, ctx.state if ctx.answer is not None else None
        talk = conversation.of(kept)
        if ctx.answer is not None and (again := talk.take(server.name, ctx.answer)) is not None:
            return again
        call = Call(effect, talk.answer_to)
        params = types.CallToolRequestParams(
            name=known.name,
            arguments=arguments,
            input_responses=talk.responses(),
            request_state=talk.request_state,
        )
        connection = await self._checked(known)
        try:
            answer = await self._answer(connection, known, call, params, ctx)
        except ConnectionLost as error:
            self._pool.drop(server)
            raise lost(server.name, effect, str(error)) from error
        except SessionGone as error:
            self._pool.drop(server)
            raise Unavailable(
                f"the MCP server {server.name!r} ends every session before it takes the call"
            ) from error
        except MCPError as error:
            raise answered(server.name, effect, error) from error
        if call.asked is not None:
            return talk.ask_in_mid_call(server.name, call.asked)
        if isinstance(answer, types.InputRequiredResult):
            return talk.ask_before(server.name, answer)
        if call.disturbed and effect is not EffectClass.WRITE:
            raise Disturbed(
                f"the MCP server {server.name!r} asked something while several calls were under "
                "way; they are made one by one from now on"
            )
        return output_of(answer, conversation.notes(server.name, call))

    async def _checked(self, known: KnownTool) -> Connection:
        """Return a connection that lists the tool exactly as it was accepted."""
        connection = await self._pool.get(known.server)
        now = connection.hashes.get(known.name)
        if now != known.accepted_hash:
            state = ToolState.GONE if now is None else ToolState.CHANGED
            raise _refusal(known.server.name, known.name, state)
        return connection

    async def _answer(
        self,
        connection: Connection,
        known: KnownTool,
        call: Call,
        params: types.CallToolRequestParams,
        ctx: ToolContext,
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Call; again when the server had forgotten the session, or only needs another moment."""

        async def report(progress: float, total: float | None, message: str | None) -> None:
            fraction = min(1.0, max(0.0, progress / total)) if total else None
            await ctx.progress(message or f"{progress:g}", fraction)

        limits = {
            "limit_s": known.server.timeout_s or CALL_TIMEOUT_S,
            "wait_s": self._pool.outside.settings.connect_s,
        }
        for _ in range(_MAX_EMPTY_ROUNDS):
            try:
                answer = await connection.call_tool(call, params, report, **limits)
            except SessionGone:
                self._pool.drop(known.server)
                connection = await self._checked(known)
                answer = await connection.call_tool(call, params, report, **limits)
            if not isinstance(answer, types.InputRequiredResult) or answer.input_requests:
                return answer
            await asyncio.sleep(_EMPTY_ROUND_S)
            params = params.model_copy(
                update={"input_responses": None, "request_state": answer.request_state}
            )
        return types.CallToolResult(
            content=[types.TextContent(text="the server asks for another moment again and again")],
            is_error=True,
        )


def _refusal(server: str, tool: str, state: ToolState) -> Denied:
    code, why = _WHY[state]
    return Denied(
        f"{why}; a person looks at it with `harness mcp tools {server}` and decides with "
        f"`harness mcp accept {server}`",
        code=code,
        server=server,
        tool=tool,
    )


def _stub(name: str, state: ToolState) -> Tool:
    """Return a tool that only says why it cannot be used: nothing of it is the server's words."""
    server, _, tool = name.partition(SEPARATOR)

    async def fn(ctx: ToolContext, /, **arguments: Json) -> Any:  # noqa: ANN401 - never returns
        del ctx, arguments
        raise _refusal(server, tool, state)

    spec = ToolSpec(
        name=name,
        description="Not available now: do not call it.",
        input_schema={"type": "object"},
        effect=EffectClass.READ,
        version=str(state),
    )
    return Tool(spec, fn, {"mcp": server})
