"""MCP servers and their tools as a worker reads and records them. The API has `mcp_servers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from harness_common.core.mcp import ToolState, list_digest, state_of
from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.db import Database


@dataclass(frozen=True, slots=True)
class Server:
    """A declared server: where it is and how its calls are to be taken."""

    tenant_id: UUID
    id: UUID
    name: str
    target: Mapping[str, Any]
    """`command` with `env`, or `url` with `headers`; values may hold `secret://name`."""
    effects: Mapping[str, str]
    timeout_s: float | None
    generation: int
    """Moves whenever it is declared anew: connections of an earlier one are not used."""
    listed_at: datetime | None = None
    """When its tools were first listed."""
    seen_hash: str | None = None

    @property
    def key(self) -> tuple[UUID, UUID, int]:
        """Name what a connection belongs to."""
        return self.tenant_id, self.id, self.generation


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool as a server lists it now."""

    name: str
    exposed: str
    definition: Json
    hash: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class KnownTool:
    """A tool of a server with what was accepted of it."""

    server: Server
    name: str
    exposed: str
    accepted: Mapping[str, Any] | None
    accepted_hash: str | None
    state: ToolState


def server_from_row(row: Row) -> Server:
    """Read a server from a row of one of the statements `mcp_*.sql`."""
    return Server(
        row["tenant_id"],
        row["id"],
        row["server"],
        row["target"],
        row["effects"],
        row["timeout_s"],
        row["generation"],
        row.get("listed_at"),
        row.get("seen_hash"),
    )


async def find_tools(db: Database, tenant_id: UUID, names: Sequence[str]) -> list[KnownTool]:
    """Return the tools of these names."""
    rows = await db.fetch("mcp_find", {"tenant_id": tenant_id, "names": list(names)})
    return [
        KnownTool(
            server_from_row(row),
            row["name"],
            row["exposed"],
            row["accepted"],
            row["accepted_hash"],
            state_of(row["accepted_hash"], row["seen_hash"], row["problem"]),
        )
        for row in rows
    ]


async def find_servers(db: Database, tenant_id: UUID, names: Sequence[str]) -> list[Server]:
    """Return the servers of these names."""
    rows = await db.fetch("mcp_servers_named", {"tenant_id": tenant_id, "names": list(names)})
    return [server_from_row(row) for row in rows]


async def accepted_names(
    db: Database, tenant_id: UUID, servers: Sequence[str]
) -> dict[str, list[str]]:
    """Return the names of all tools that may be called, by server, in their order."""
    found: dict[str, list[str]] = {name: [] for name in servers}
    for row in await db.fetch("mcp_accepted", {"tenant_id": tenant_id, "names": list(servers)}):
        found[row["server"]].append(row["exposed"])
    return found


async def record_list(db: Database, server: Server, tools: Sequence[Listed]) -> str:
    """Record what a server lists now and return the digest of the list.

    Nothing is recorded when the server was declared anew or removed meanwhile.
    """
    whole = list_digest({tool.name: tool.hash for tool in tools})
    rows = [
        {
            "name": tool.name,
            "exposed": tool.exposed,
            "definition": tool.definition,
            "hash": tool.hash,
            "problem": tool.problem,
        }
        for tool in tools
    ]
    await db.fetch(
        "mcp_listed",
        {
            "tenant_id": server.tenant_id,
            "id": server.id,
            "generation": server.generation,
            "tools": json_codec.dumps_text(rows),
            "seen_hash": whole,
        },
    )
    return whole


async def take_check(
    db: Database, tenant_id: UUID, server_id: UUID, hold_s: float
) -> tuple[Server, int] | None:
    """Take the wish to look at a server now; None when there is none or another worker has it."""
    row = await db.fetch_one(
        "mcp_check_take", {"tenant_id": tenant_id, "id": server_id, "hold_s": hold_s}
    )
    return (server_from_row(row), row["check_asked"]) if row else None


async def end_check(db: Database, server: Server, asked: int, checked: Mapping[str, Json]) -> None:
    """Say what a look at a server has found."""
    await db.fetch(
        "mcp_check_done",
        {
            "tenant_id": server.tenant_id,
            "id": server.id,
            "asked": asked,
            "checked": json_codec.dumps_text(dict(checked)),
        },
    )
