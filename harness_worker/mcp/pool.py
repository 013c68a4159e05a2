"""The connections of one worker process, by tenant and server: opened when needed, one each, closed
when idle, never another tenant's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

import httpx2
from mcp import MCPError
from mcp.client._transport import TransportStreams

from harness_common.contracts.secrets import Secrets
from harness_common.contracts.tool import ToolSpec
from harness_common.core.errors import HarnessError, Invalid, Limited, NotFound
from harness_common.settings import McpSettings
from harness_common.store.mcp_tools import Listed, Server
from harness_worker.mcp.connection import Connection
from harness_worker.mcp.faults import ConnectionLost, SessionGone, Unavailable
from harness_worker.mcp.http import Bridge, ClientFactory, http_transport, protocol_client
from harness_worker.mcp.listing import listed_tools
from harness_worker.mcp.stdio import Complaints, check_allowed, stdio_transport

_BUSY_S: Final = 5.0
_SAID: Final = 500


class NoSecrets:
    """Where no secrets are kept: a reference to one is an error that says so."""

    async def resolve(self, tenant_id: UUID, text: str) -> str:
        """Return a text without references as it is."""
        del tenant_id
        if "secret://" in text:
            raise NotFound("there are no secrets on this worker", code="SECRET_NOT_FOUND")
        return text


@dataclass(frozen=True, slots=True)
class Outside:
    """What connections need of the rest of the worker."""

    settings: McpSettings
    homes: Path
    """A folder below which each server that is a command has its home."""
    client: ClientFactory
    check: Callable[[ToolSpec], None]
    """Raises `Invalid` for a tool that no agent could have."""
    record: Callable[[Server, Sequence[Listed]], Awaitable[object]]
    """Keeps what a server lists."""
    secrets: Secrets = field(default_factory=NoSecrets)
    auth: Callable[[Server], httpx2.Auth | None] = lambda server: None


class Pool:
    """Connections by (tenant, server, generation)."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        self._open: dict[tuple[UUID, UUID, int], Connection] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self.said: OrderedDict[UUID, str] = OrderedDict()
        """The last complaints of servers that are commands, for people."""

    @property
    def size(self) -> int:
        """Return how many connections are open or being opened."""
        return len(self._open)

    async def get(self, server: Server) -> Connection:
        """Return a connection whose tool list is fresh; connects when there is none.

        Raises `Unavailable`, `Permanent` (`MCP_UNAUTHORIZED`), `Denied` (`MCP_COMMAND_DENIED`),
        `Limited` (`MCP_BUSY`). Nothing has been called then.
        """
        try:
            return await self._fresh(server)
        except (ConnectionLost, SessionGone):
            self.drop(server)
        try:
            return await self._fresh(server)
        except (ConnectionLost, SessionGone) as error:
            self.drop(server)
            raise Unavailable(
                f"the MCP server {server.name!r} ends the connection: {error}"
            ) from error

    async def _fresh(self, server: Server) -> Connection:
        limit_s = self.outside.settings.connect_s
        connection = self._connection(server)
        try:
            async with asyncio.timeout(limit_s):
                await connection.ready()
                await self._listed(connection, server)
        except TimeoutError as error:
            self.drop(server)
            raise Unavailable(
                f"the MCP server {server.name!r} did not start and list its tools within "
                f"{limit_s:g} s"
            ) from error
        except asyncio.CancelledError:
            raise
        except Exception:
            self.drop(server)
            raise
        return connection

    def _connection(self, server: Server) -> Connection:
        found = self._open.get(server.key)
        if found is not None and (found.is_open or not found.is_started):
            return found
        self.drop(server)
        self._make_room()
        for key in [k for k in self._open if k[:2] == server.key[:2]]:
            self._drop(key)  # declared anew since
        made = self.connect(server)
        self._open[server.key] = made
        return made

    def connect(self, server: Server) -> Connection:
        """Begin to open a connection that is nobody else's."""
        bridges: list[Bridge] = []

        def fault_of(error: MCPError) -> str | None:
            return bridges[0].fault_of(error) if bridges else None

        return Connection(
            server.name,
            lambda: self._transport(server, bridges),
            self.outside.settings.idle_s,
            fault_of,
        )

    def _make_room(self) -> None:
        for key in [k for k, c in self._open.items() if c.is_started and not c.is_open]:
            self._drop(key)
        if len(self._open) < self.outside.settings.max_connections:
            return
        idle = [(c.used_at, key) for key, c in self._open.items() if c.is_idle]
        if not idle:
            raise Limited(
                f"this worker is connected to {len(self._open)} MCP servers, all in use; "
                "the limit is HARNESS_MCP__MAX_CONNECTIONS",
                retry_after_s=_BUSY_S,
                code="MCP_BUSY",
            )
        self._drop(min(idle)[1])

    async def _listed(self, connection: Connection, server: Server) -> None:
        """Read the tool list unless what is known of it is young, and record what has changed."""
        async with connection.listing:
            age_s = time.monotonic() - connection.listed_at
            if not connection.is_stale and age_s < self.outside.settings.relist_s:
                return
            connection.is_stale = False
            try:
                listed = listed_tools(server, await connection.list_tools(), self.outside.check)
                connection.hashes = {tool.name: tool.hash for tool in listed if not tool.problem}
                await self.outside.record(server, listed)
            except BaseException:
                connection.is_stale = True
                raise
            connection.listed_at = time.monotonic()

    async def look(self, server: Server) -> Connection:
        """Connect anew beside the pool, list, record; the caller closes it."""
        connection = self.connect(server)
        try:
            async with asyncio.timeout(self.outside.settings.connect_s):
                await connection.ready()
                await self._listed(connection, server)
        except TimeoutError as error:
            connection.stop()
            raise Unavailable("it did not start and list its tools in time") from error
        except BaseException:
            connection.stop()
            raise
        for key, pooled in self._open.items():
            if key[:2] == server.key[:2]:
                pooled.is_stale = True
        return connection

    @contextlib.asynccontextmanager
    async def _transport(
        self, server: Server, bridges: list[Bridge]
    ) -> AsyncIterator[TransportStreams]:
        target, settings = server.target, self.outside.settings
        if "command" in target:
            check_allowed(target["command"][0], settings.commands)
            env = await self._resolved(server, target.get("env") or {})
            home = self.outside.homes / server.tenant_id.hex / server.id.hex
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            complaints = Complaints(list(env.values()))
            try:
                async with stdio_transport(
                    target["command"], env, home, settings.max_result_bytes, complaints
                ) as streams:
                    yield streams
            finally:
                self.said[server.id] = complaints.text()
                while len(self.said) > _SAID:
                    self.said.popitem(last=False)
            return
        headers = await self._resolved(server, target.get("headers") or {})
        async with await self.outside.client(server.tenant_id) as client:
            bridge = Bridge(client, settings.max_result_bytes)
            bridges[:] = [bridge]
            auth = self.outside.auth(server)
            async with (
                protocol_client(bridge, headers, auth) as spoken,
                http_transport(target["url"], spoken, settings.max_result_bytes) as streams,
            ):
                yield streams

    async def _resolved(self, server: Server, values: dict[str, str]) -> dict[str, str]:
        """Put secrets in the place of their references, now that they are needed."""
        found: dict[str, str] = {}
        for name, value in values.items():
            try:
                found[name] = await self.outside.secrets.resolve(server.tenant_id, value)
            except HarnessError as error:
                raise Invalid(
                    f"{name} of the MCP server {server.name!r}: {error.message}",
                    code=error.error_code,
                ) from error
        return found

    def drop(self, server: Server) -> None:
        """Forget a connection and close it behind the scenes."""
        self._drop(server.key)

    def _drop(self, key: tuple[UUID, UUID, int]) -> None:
        connection = self._open.pop(key, None)
        if connection is None:
            return
        connection.stop()
        task = asyncio.create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def aclose(self) -> None:
        """Close all connections, and wait for it."""
        for key in list(self._open):
            self._drop(key)
        if self._closing:
            await asyncio.wait(self._closing)
