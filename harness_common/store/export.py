"""Everything that is stored of a run, a user or a tenant, as records, a page at a time. Used by the
API.

What is encrypted is opened. Secrets, keys and what only the platform needs (claims, snapshots that
the deltas give again, vectors) are left out. A run under way is read as it stood when its record
was written: what comes later is not in it.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Table, and_, literal, select, tuple_

from harness_common.contracts.blob import Blobs
from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.core.mcp import masked
from harness_common.store import json_codec
from harness_common.store import schema as t
from harness_common.store.artifacts import plain_digest, read_bytes
from harness_common.store.connection import Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.lineage import read_lineage

Record = dict[str, Any]

FORMAT: Final = "harness-export/1"
_FIRST_PAGE: Final = 50
_MOST_ROWS: Final = 500
_BIG_BYTES: Final = 2 * 1024 * 1024
_CHUNK_BYTES: Final = 192 * 1024
LEFT_OUT: Final = frozenset(
    {
        *("tenant_id", "snapshot", "claim_id", "secret_hash", "wrapped", "value"),
        *("embedding", "words", "digest_key", "claimed_by", "committed_by"),
    }
)
"""Columns that say nothing to whom it is about, or nothing to anybody else."""
OF_TENANT: Final[tuple[tuple[str, Table, tuple[str, ...]], ...]] = (
    ("agent", t.agents, ("name", "version")),
    ("skill", t.skills, ("name", "version")),
    ("policy", t.policies, ("agent_name", "version")),
    ("tool", t.tenant_tools, ("name",)),
    ("tool_version", t.tool_versions, ("name", "version")),
    ("egress", t.egress_rules, ("tenant_id",)),
    ("schedule", t.schedules, ("id",)),
    ("firing", t.schedule_firings, ("schedule_id", "at")),
    ("webhook", t.webhooks, ("id",)),
    ("mcp_server", t.mcp_servers, ("id",)),
    ("mcp_tool", t.mcp_tools, ("server_id", "name")),
    ("api_key", t.api_keys, ("id",)),
    ("retention", t.retention, ("tenant_id",)),
    ("saved_view", t.console_views, ("id",)),
    ("usage", t.usage, ("day", "model")),
    ("context_part", t.context_parts, ("digest",)),
    ("audit", t.audit, ("id",)),
)
OF_RUN: Final[tuple[tuple[str, Table, tuple[str, ...]], ...]] = (
    ("input", t.inputs, ("n",)),
    ("message", t.messages, ("n",)),
    ("checkpoint", t.checkpoints, ("step",)),
    ("event", t.events, ("seq",)),
    ("call", t.tool_calls, ("step", "idx")),
    ("approval", t.approvals, ("id",)),
    ("repair", t.repairs, ("step",)),
    ("webhook_delivery", t.webhook_deliveries, ("id",)),
)
NOT_TOLD: Final = frozenset(
    {
        *("secrets", "tenant_keys", "idempotency_keys", "blob_garbage", "erasures"),
        *("tenant_slots", "tenant_days", "tool_breakers"),
        *("foreign_checkpoints", "foreign_writes"),
    }
)
"""Tables of which nothing is exported: secrets, what others' frameworks keep in bytes of their own,
and what the platform reckons with.
"""


@dataclass(frozen=True, slots=True)
class Exporter:
    """Reads for one tenant. `content` says whether the bytes of artifacts are wanted."""

    db: Database
    blobs: Blobs
    tenant_id: UUID
    content: bool = True

    async def run(self, run_id: UUID) -> AsyncIterator[Record]:
        """Yield the records of a run; raises `NotFound` before the first."""
        run = await self._run_row(run_id)
        shown = encode("run", run_id)
        yield _record("run", run) | {"id": shown}
        lineage = await read_lineage(self.db, self.tenant_id, run_id)
        for relative in (*lineage.above, *lineage.below):
            yield {
                "kind": "relative", "run": shown, "relation": relative["relation"],
                "id": encode("run", relative["id"]), "status": relative["status"],
            }  # fmt: skip
        for kind, table, keys in OF_RUN:
            until = _until(table, run)
            async for row in self._rows(table, keys, table.c.run_id == run_id, *until):
                yield _record(kind, row) | {"run": shown}
        async for record in self._artifacts(run_id):
            yield record

    async def user(self, user_id: str) -> AsyncIterator[Record]:
        """Yield what there is of a user: facts, sessions, runs."""
        of_user = t.memories.c.user_id == user_id
        async for row in self._rows(t.memories, ("id",), of_user):
            yield _record("memory", row)
        async for record in self._sessions(t.sessions.c.user_id == user_id):
            yield record

    async def tenant(self) -> AsyncIterator[Record]:
        """Yield what there is of the tenant."""
        async for row in self._rows(t.tenants, ("tenant_id",)):
            yield _record("tenant", row) | {"id": encode("tenant", self.tenant_id)}
        for kind, table, keys in OF_TENANT:
            async for row in self._rows(table, keys):
                if table is t.mcp_servers:
                    row["target"] = _without_values(row["target"])
                yield _record(kind, row)
        async for row in self._rows(t.memories, ("id",)):
            yield _record("memory", row)
        async for record in self._sessions():
            yield record

    async def _sessions(self, *where: ColumnElement[bool]) -> AsyncIterator[Record]:
        async for session in self._rows(t.sessions, ("id",), *where):
            yield _record("session", session) | {"id": encode("session", session["id"])}
            mine = t.runs.c.session_id == session["id"]
            ids = [row["id"] async for row in self._rows(t.runs, ("id",), mine, only=("id",))]
            for run_id in ids:
                try:
                    async for record in self.run(run_id):
                        yield record
                except NotFound:  # its time was over meanwhile
                    continue

    async def _artifacts(self, run_id: UUID) -> AsyncIterator[Record]:
        async for row in self._rows(t.artifacts, ("id",), t.artifacts.c.run_id == run_id):
            shown = encode("artifact", row["id"])
            data: bytes | None = None
            if self.content:
                try:
                    data = await read_bytes(self.db, self.blobs, self.tenant_id, row)
                except FileNotFoundError:
                    data = None
            yield {
                "kind": "artifact", "id": shown, "run": encode("run", run_id),
                "name": row["name"], "media_type": row["media_type"],
                "size_bytes": row["size_bytes"], "sha256": plain_digest(row),
                "created_at": row["created_at"], "has_content": data is not None,
            }  # fmt: skip
            for at in range(0, len(data or b""), _CHUNK_BYTES):
                assert data is not None
                piece = base64.b64encode(data[at : at + _CHUNK_BYTES]).decode()
                yield {"kind": "artifact_bytes", "id": shown, "at": at, "base64": piece}

    async def _run_row(self, run_id: UUID) -> Row:
        """Read a run with `messages`, `next_seq` and `step`, which bound what is read after it."""
        params = {"tenant_id": self.tenant_id, "run_id": run_id}
        async with self.db.tenant_transaction(self.tenant_id) as conn:
            rows = await run_sql(conn, "run_view", params, self.db.timeout_s)
        if not rows:
            shown = encode("run", run_id)
            raise NotFound(f"no run {shown}", field="run_id", value=shown)
        return rows[0]

    async def _rows(
        self,
        table: Table,
        keys: Sequence[str],
        *where: ColumnElement[bool],
        only: Sequence[str] = (),
    ) -> AsyncIterator[Row]:
        """Yield rows in the order of their keys, a page at a time: pages of big rows are short."""
        by = [table.c[name] for name in keys]
        columns = [c for c in table.columns if (c.name in only if only else _told(c))]
        wanted = {c.name: c for c in (*columns, *by)}
        query = select(*wanted.values()).where(table.c.tenant_id == self.tenant_id, *where)
        limit, after = _FIRST_PAGE, None
        while True:
            page = query if after is None else query.where(_after(by, after))
            async with self.db.tenant_transaction(self.tenant_id) as conn:
                statement = page.order_by(*by).limit(limit)
                rows = await run_core(conn, statement, self.db.timeout_s)
            for row in rows:
                yield row
            if len(rows) < limit:
                return
            after = [rows[-1][name] for name in keys]
            size = sum(len(json_codec.dumps(_plain(row))) for row in rows)
            limit = max(1, limit // 4) if size > _BIG_BYTES else min(_MOST_ROWS, limit * 2)


def _after(by: Sequence[Column[Any]], after: Sequence[Any]) -> ColumnElement[bool]:
    """Match what comes after a row. A single key needs no tuple."""
    if len(by) == 1:
        return and_(by[0] > after[0])
    values = (literal(v, c.type) for v, c in zip(after, by, strict=True))
    return tuple_(*by) > tuple_(*values)


def _until(table: Table, run: Row) -> list[ColumnElement[bool]]:
    """Leave out what a run under way wrote after its record was read."""
    bounds = {t.messages: ("n", run["messages"]), t.events: ("seq", run["next_seq"] - 1),
              t.checkpoints: ("step", run["step"])}  # fmt: skip
    name, last = bounds.get(table, ("", 0))
    return [table.c[name] <= last] if name else []


def _without_values(target: Record) -> Record:
    """Hide what headers and environment of an MCP server hold, as the API does."""
    parts = (part for part in ("env", "headers") if target.get(part))
    return target | {part: masked(target[part]) for part in parts}


def _told(column: Column[Any]) -> bool:
    return column.name not in LEFT_OUT


def _plain(row: Row) -> dict[str, str]:
    return {name: str(value) for name, value in row.items()}


def _record(kind: str, row: Row) -> Record:
    names = (name for name in row if name not in LEFT_OUT | {"run_id", "sealed"})
    told = {("of_kind" if name == "kind" else name): row[name] for name in names}
    return {"kind": kind, **told}
