"""MCP servers: declare, look at, refresh, accept what they list, remove."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Annotated, Any, Final

from fastapi import Path, Query, Response

from harness_api.aside import aside
from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.mcp_servers import (
    McpAccept,
    McpAccepted,
    McpCheck,
    McpServerCreate,
    McpServerPut,
    McpServerView,
    McpTools,
    McpToolView,
)
from harness_api.text_diff import diff_lines
from harness_common.core.errors import Conflict, Denied, Transient
from harness_common.core.ids import encode
from harness_common.core.mcp import command_allowed, masked
from harness_common.store import mcp_servers as store
from harness_common.store.connection import Row

router = new_router("/v1/mcp-servers", "mcp")

CanRead = Annotated[Caller, requires("mcp:read")]
CanWrite = Annotated[Caller, requires("mcp:write")]
Name = Annotated[
    str, Path(alias="server", pattern=r"^[a-z0-9](-?[a-z0-9]){0,31}$", description="Its name.")
]
_POLL_S: Final = 0.2
_ASK_AGAIN_S: Final = 2.0


def server_view(row: Row) -> McpServerView:
    """Show a server."""
    target = row["target"]
    return McpServerView(
        id=encode("mcp_server", row["id"]),
        name=row["name"],
        transport="stdio" if "command" in target else "http",
        command=target.get("command"),
        env=masked(target.get("env") or {}),
        url=target.get("url"),
        headers=masked(target.get("headers") or {}),
        effects=row["effects"],
        timeout_s=row["timeout_s"],
        listed_digest=row["seen_hash"],
        listed_at=row["listed_at"],
        check=McpCheck(**row["checked"]) if row["checked"] else None,
        created_at=row["created_at"],
        created_by=row["created_by"],
        updated_at=row["updated_at"],
    )


def tool_view(server: Row, row: Row) -> McpToolView:
    """Show a tool."""
    return McpToolView(
        name=row["name"],
        tool=row["exposed"],
        state=row["state"].value,
        effect=server["effects"].get(row["name"], "write"),
        problem=row["problem"],
        accepted=row["accepted"],
        accepted_digest=row["accepted_hash"],
        accepted_at=row["accepted_at"],
        accepted_by=row["accepted_by"],
        listed=row["seen"],
        listed_digest=row["seen_hash"],
        diff=_diff(row["accepted"], row["seen"])
        if row["accepted_hash"] != row["seen_hash"]
        else [],
    )


def _diff(accepted: Any, listed: Any) -> list[str]:  # noqa: ANN401 - JSON
    before, after = (
        json.dumps(one, indent=1, sort_keys=True, ensure_ascii=False).splitlines() if one else []
        for one in (accepted, listed)
    )
    found = diff_lines(before, after, 2)
    return ["--- accepted", "+++ listed", *found] if found else []


def _check_command(services: Services, body: McpServerPut) -> None:
    if body.command is None or command_allowed(body.command[0], services.config.mcp.commands):
        return
    allowed = ", ".join(services.config.mcp.commands) or "none"
    raise Denied(
        f"this installation does not start {body.command[0]!r} as an MCP server; allowed: "
        f"{allowed}. The operator allows programs with HARNESS_MCP__COMMANDS; a server with a url "
        "needs none.",
        code="MCP_COMMAND_DENIED",
        field="command",
        value=body.command[0],
    )


async def _put(services: Services, caller: Caller, name: str, body: McpServerPut) -> Row:
    _check_command(services, body)
    declared = store.Declared(body.target(), body.effects, body.timeout_s)
    row, _ = await store.put_server(services.db, caller.tenant_id, name, declared, caller.actor)
    return row


@router.post("", status_code=201, operation_id="createMcpServer", response_model=McpServerView)
async def post_server(
    body: McpServerCreate, response: Response, services: Use, caller: CanWrite
) -> McpServerView:
    """Declare a server. Its tools are listed when a run first needs them, or by `refresh`."""
    if any(
        row["name"] == body.name for row in await store.list_servers(services.db, caller.tenant_id)
    ):
        raise Conflict(
            f"there is an MCP server {body.name!r} already; change it with PUT, or remove it",
            code="NAME_TAKEN",
            field="name",
            value=body.name,
        )
    row = await _put(services, caller, body.name, body)
    response.headers["Location"] = f"/v1/mcp-servers/{row['name']}"
    return server_view(row)


@router.get("", operation_id="listMcpServers", response_model=Page[McpServerView])
async def get_servers(services: Use, caller: CanRead) -> Page[McpServerView]:
    """List all servers by name."""
    rows = await store.list_servers(services.db, caller.tenant_id)
    return Page(data=[server_view(row) for row in rows], next_cursor=None)


@router.get("/{server}", operation_id="getMcpServer", response_model=McpServerView)
async def get_server(name: Name, services: Use, caller: CanRead) -> McpServerView:
    """Read a server."""
    return server_view(await store.read_server(services.db, caller.tenant_id, name))


@router.put("/{server}", operation_id="putMcpServer", response_model=McpServerView)
async def put_server(
    name: Name, body: McpServerPut, services: Use, caller: CanWrite
) -> McpServerView:
    """Declare a server, or declare it anew. What was accepted of its tools stays as it is."""
    return server_view(await _put(services, caller, name, body))


@router.delete("/{server}", status_code=204, operation_id="deleteMcpServer")
async def delete_server(name: Name, services: Use, caller: CanWrite) -> None:
    """Remove a server. Calls of its tools are refused from the next step on."""
    await store.remove_server(services.db, caller.tenant_id, name, caller.actor)


@router.get("/{server}/tools", operation_id="listMcpTools", response_model=McpTools)
async def get_tools(name: Name, services: Use, caller: CanRead) -> McpTools:
    """List a server's tools: accepted, new, changed (with the difference), gone and refused."""
    server = await store.read_server(services.db, caller.tenant_id, name)
    rows = await store.list_tools(services.db, caller.tenant_id, server["id"])
    # What a server lists, it decides.
    return McpTools(data=await aside(lambda: [tool_view(server, row) for row in rows]))


@router.post("/{server}/accept", operation_id="acceptMcpTools", response_model=McpAccepted)
async def post_accept(
    name: Name, services: Use, caller: CanWrite, body: McpAccept | None = None
) -> McpAccepted:
    """Accept what the server lists now: one tool, or all. Tools that are gone are forgotten."""
    wanted = body or McpAccept()
    changed = await store.accept_tools(
        services.db,
        caller.tenant_id,
        name,
        tool=wanted.tool,
        digest=wanted.digest,
        actor=caller.actor,
    )
    return McpAccepted(accepted=changed)


@router.post("/{server}/refresh", operation_id="refreshMcpServer", response_model=McpServerView)
async def post_refresh(
    name: Name,
    services: Use,
    caller: CanWrite,
    wait_s: Annotated[float, Query(ge=0, le=60)] = 45.0,
) -> McpServerView:
    """Let a worker connect anew and list the tools; `check` says what it found.

    What the list brings is accepted by nobody, but for the first list of a server.
    """
    asked = await store.ask_check(services.db, caller.tenant_id, name)
    give_up, ring_at = time.monotonic() + wait_s, 0.0
    while True:
        if time.monotonic() >= ring_at:
            await services.channel.mcp_check(caller.tenant_id, asked["id"])
            ring_at = time.monotonic() + _ASK_AGAIN_S
        row = await store.read_server(services.db, caller.tenant_id, name)
        if row["check_done"] >= asked["check_asked"]:
            return server_view(row)
        if time.monotonic() > give_up:
            raise Transient(
                f"no worker has looked at the MCP server within {wait_s:g} s; are workers running? "
                "`harness workers` lists them",
                code="NO_WORKER",
            )
        await asyncio.sleep(_POLL_S)
