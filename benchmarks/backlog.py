"""A backlog made by SQL: as many queued runs as one asks for, whole enough to be run."""

from __future__ import annotations

from typing import Final, LiteralString
from uuid import UUID

import psycopg

from harness_common.core.message import dumps, user

_FILL: Final[LiteralString] = """
WITH a AS (
    SELECT tenant_id, id, name, version, spec FROM agents
    WHERE tenant_id = %(tenant_id)s AND name = %(agent)s ORDER BY version DESC LIMIT 1
), s AS (
    INSERT INTO sessions (tenant_id, id) SELECT tenant_id, uuid7() FROM a RETURNING id
), made AS (
    INSERT INTO runs (tenant_id, id, session_id, agent_id, agent_name, agent_version, status,
        next_kind, messages, limits, retry, queue, input, created_by, trace_id)
    SELECT a.tenant_id, uuid7(), s.id, a.id, a.name, a.version, 'queued', 'model', 1,
        '{"max_turns": 1000}', a.spec->'retry', 'steps.default', 'Go.', 'backlog', ''
    FROM a, s, generate_series(1, %(count)s) RETURNING tenant_id, id
)
INSERT INTO messages (tenant_id, run_id, n, step, role, trust, body)
SELECT tenant_id, id, 1, 0, 'user', 'trusted', %(body)s FROM made
"""
_BATCH: Final = 20_000


def fill(conn: psycopg.Connection[object], tenant_id: UUID, agent: str, count: int) -> None:
    """Queue `count` runs of an agent; each has its first message and no event yet."""
    for begun in range(0, count, _BATCH):
        params = {"tenant_id": tenant_id, "agent": agent, "body": dumps(user("Go."))}
        conn.execute(_FILL, params | {"count": min(_BATCH, count - begun)})
