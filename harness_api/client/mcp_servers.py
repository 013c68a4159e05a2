"""MCP servers: declare, look at, accept what they list, remove."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from harness_api.client.http import Call, given
from harness_api.client.paths import name_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import McpAccepted, McpServer, McpTool

_PATH = "/v1/mcp-servers/{}"


class McpServers(Resource[M]):
    """`client.mcp`."""

    @operation
    async def create(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        effects: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> McpServer:
        """Declare a server: exactly one of `command` and `url`. Values may be `secret://name`."""
        body = given(name=name) | _body(command, env, url, headers, effects, timeout_s)
        return await self._http.fetch(Call("POST", "/v1/mcp-servers", body=body), McpServer)

    @operation
    async def put(
        self,
        name: str,
        *,
        command: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        url: str | None = None,
        headers: Mapping[str, str] | None = None,
        effects: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> McpServer:
        """Declare a server, or declare it anew; what was accepted of its tools stays."""
        body = _body(command, env, url, headers, effects, timeout_s)
        call = Call("PUT", name_path(_PATH, name), body=body, repeatable=True)
        return await self._http.fetch(call, McpServer)

    @operation
    async def get(self, name: str) -> McpServer:
        """Read a server."""
        return await self._http.fetch(Call("GET", name_path(_PATH, name)), McpServer)

    @flow
    async def list(self) -> AsyncGenerator[McpServer, None]:
        """Yield all servers by name."""
        async for server in self._http.pages("/v1/mcp-servers", McpServer):
            yield server

    @flow
    async def tools(self, name: str) -> AsyncGenerator[McpTool, None]:
        """Yield a server's tools: accepted, new, changed, gone and refused."""
        async for tool in self._http.pages(name_path(_PATH + "/tools", name), McpTool):
            yield tool

    @operation
    async def refresh(self, name: str) -> McpServer:
        """Let a worker connect anew and list the tools; look at `check`."""
        path = name_path(_PATH + "/refresh", name) + "?wait_s=25"
        return await self._http.fetch(Call("POST", path, repeatable=True), McpServer)

    @operation
    async def accept(
        self, name: str, tool: str | None = None, *, digest: str | None = None
    ) -> McpAccepted:
        """Accept what the server lists now: one tool or all. `digest` binds it to what was seen."""
        call = Call(
            "POST", name_path(_PATH + "/accept", name), body=given(tool=tool, digest=digest)
        )
        return await self._http.fetch(call, McpAccepted)

    @operation
    async def delete(self, name: str) -> None:
        """Remove a server."""
        await self._http.send(Call("DELETE", name_path(_PATH, name)))


def _body(
    command: Sequence[str] | None,
    env: Mapping[str, str] | None,
    url: str | None,
    headers: Mapping[str, str] | None,
    effects: Mapping[str, str] | None,
    timeout_s: float | None,
) -> dict[str, Any]:
    return given(
        command=list(command) if command else None,
        env=dict(env) if env else None,
        url=url,
        headers=dict(headers) if headers else None,
        effects=dict(effects) if effects else None,
        timeout_s=timeout_s,
    )
