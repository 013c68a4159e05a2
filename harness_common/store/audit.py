"""The audit trail: one row for every change that somebody asked for, written in the transaction of
the change.

Called by commands and by the API's own writes (agents, sessions, keys, limits). Rows are only ever
added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from harness_common.core.message import Json
from harness_common.store import json_codec
from harness_common.store.connection import Connection


@dataclass(frozen=True, slots=True)
class Actor:
    """Who asks, and in which request."""

    name: str
    """The external id of an API key, or the name of a process of ours."""
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """What was done to what."""

    action: str
    """`noun.verb`, for example `run.cancel`."""
    target: str
    detail: Mapping[str, Json] = field(default_factory=dict)


def record(conn: Connection, tenant_id: UUID, actor: Actor, entry: Entry) -> None:
    """Add one row in the transaction that is open on `conn`, with what comes next in it."""
    conn.run_later(
        "audit_insert",
        {
            "tenant_id": tenant_id,
            "actor": actor.name,
            "action": entry.action,
            "target": entry.target,
            "request_id": actor.request_id,
            "detail": json_codec.dumps_text(dict(entry.detail)),
        },
    )
