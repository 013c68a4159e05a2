"""The way in to MCP servers, without the protocol's library until a tenant has a server: that takes
well over a second of a process's start and tens of megabytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

import httpx
import structlog

from harness_common.contracts.secrets import Secrets
from harness_common.contracts.tool import Tool, ToolSpec
from harness_common.core.mcp import SEPARATOR, WILDCARD, wildcards
from harness_common.settings import McpSettings
from harness_common.store.db import Database
from harness_common.store.mcp_tools import find_servers, record_list

if TYPE_CHECKING:
    from harness_worker.mcp.source import McpTools

log = structlog.get_logger()


class McpSource(Protocol):
    """What the rest of a worker asks of MCP servers; a `ToolSource` besides."""

    async def find(self, tenant_id: UUID, names: Sequence[str]) -> list[Tool]:
        """Return the tenant's tools of these names."""
        ...

    async def expand(self, tenant_id: UUID, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names with each `server__*` replaced by the server's accepted tools."""
        ...

    def wish(self, tenant_id: UUID, server_id: UUID) -> None:
        """Look at a server behind the scenes, because somebody asked for it."""
        ...

    async def aclose(self) -> None:
        """Close all connections."""
        ...


@dataclass(frozen=True, slots=True)
class Needs:
    """What connections need of the rest of the worker (see `pool.Outside`)."""

    settings: McpSettings
    homes: Path
    client: Callable[[UUID], Awaitable[httpx.AsyncClient]]
    check: Callable[[ToolSpec], None]
    secrets: Secrets | None = None


class McpEntry:
    """The `McpSource` of a worker process."""

    def __init__(self, db: Database, needs: Needs) -> None:
        self._db, self._needs = db, needs
        self._made: McpTools | None = None
        self._making = asyncio.Lock()
        self._wishes: set[asyncio.Task[None]] = set()

    async def find(self, tenant_id: UUID, names: Sequence[str]) -> list[Tool]:
        """Return the tenant's tools of these names; see `McpTools.find`."""
        servers = {name.partition(SEPARATOR)[0] for name in names if SEPARATOR in name}
        if not await self._any(tenant_id, servers):
            return []
        return await (await self._tools()).find(tenant_id, names)

    async def expand(self, tenant_id: UUID, names: Sequence[str]) -> tuple[str, ...]:
        """Return the names with each `server__*` replaced; see `McpTools.expand`."""
        if not await self._any(tenant_id, set(wildcards(names))):
            return tuple(name for name in names if not name.endswith(WILDCARD))
        return await (await self._tools()).expand(tenant_id, names)

    async def _any(self, tenant_id: UUID, servers: set[str]) -> bool:
        """Tell whether the tenant may have one of these; asks only while that saves the library."""
        if not servers or self._made is not None:
            return bool(servers)
        return bool(await find_servers(self._db, tenant_id, sorted(servers)))

    def wish(self, tenant_id: UUID, server_id: UUID) -> None:
        """Look at a server behind the scenes."""
        task = asyncio.create_task(self._wish(tenant_id, server_id))
        self._wishes.add(task)
        task.add_done_callback(self._wishes.discard)

    async def _wish(self, tenant_id: UUID, server_id: UUID) -> None:
        (await self._tools()).wish(tenant_id, server_id)

    async def _tools(self) -> McpTools:
        async with self._making:
            if self._made is None:
                self._made = await asyncio.to_thread(_load, self._db, self._needs)
        return self._made

    async def aclose(self) -> None:
        """Close all connections."""
        for task in self._wishes:
            task.cancel()
        if self._made is not None:
            await self._made.aclose()


def _load(db: Database, needs: Needs) -> McpTools:
    """Import the library, in a thread: the loop goes on meanwhile."""
    from harness_worker.mcp.pool import NoSecrets, Outside, Pool  # noqa: PLC0415
    from harness_worker.mcp.source import McpTools  # noqa: PLC0415

    outside = Outside(
        settings=needs.settings,
        homes=needs.homes,
        client=needs.client,
        check=needs.check,
        record=partial(record_list, db),
        secrets=needs.secrets or NoSecrets(),
    )
    return McpTools(db, Pool(outside))
