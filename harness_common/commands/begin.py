"""What a start depends on, read with its tenant's slots held: agent, session, room, and what its
idempotency key made before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from harness_common.commands.request import Started, StartRun
from harness_common.core.errors import Conflict, NotFound
from harness_common.core.ids import encode
from harness_common.core.run import Status
from harness_common.store import json_codec
from harness_common.store.connection import Connection, Row, run_sql, run_together
from harness_common.store.db import Database

_ROUTE: Final = "runs.create"
"""What idempotency keys are unique within."""

_IDS: Final = ("run_id", "new_session_id")
"""Minted in one millisecond, in which they have no order: dealt out in that of the starts."""


async def begin(
    db: Database, conn: Connection, tenant_id: UUID, requests: Sequence[StartRun]
) -> list[Row]:
    """Hold the tenant's slots, then read what each start depends on: a tenant's starts go one by
    one, or together. A row is one of `start_begin.sql`, with what its key made before as `twin`.
    """
    asked = [
        {
            "agent": one.agent,
            "agent_version": one.agent_version,
            "session_id": one.session_id,
        }
        for one in requests
    ]
    find = {"tenant_id": tenant_id, "asked": json_codec.dumps_text(asked)}
    keyed = [n for n, one in enumerate(requests) if one.idempotency_key is not None]
    _, rows, *made = await run_together(
        conn,
        [
            ("slots_hold", {"tenant_id": tenant_id}),
            ("start_begin", find),
            *(("idempotency_read", key_of(tenant_id, requests[n])) for n in keyed),
        ],
        db.timeout_s,
    )
    if not rows:
        raise NotFound("no such tenant")
    twins = {n: found[0] for n, found in zip(keyed, made, strict=True) if found}
    ids = zip(*(sorted(row[name] for row in rows) for name in _IDS), strict=True)
    return [
        row | dict(zip(_IDS, minted, strict=True)) | {"twin": _in_time(twins.get(n))}
        for n, (row, minted) in enumerate(zip(rows, ids, strict=True))
    ]


def _in_time(made: Row | None) -> Row | None:
    return None if made is None or made["past"] else made


def key_of(tenant_id: UUID, request: StartRun) -> dict[str, Any]:
    """Return the parameters that name the idempotency key of a request."""
    return {
        "tenant_id": tenant_id,
        "route": _ROUTE,
        "key": request.idempotency_key,
        "ttl_s": float(request.idempotency_ttl_s),
    }


async def reserve_keys(
    db: Database, conn: Connection, tenant_id: UUID, wanted: Sequence[tuple[StartRun, UUID]]
) -> list[Started | Conflict | None]:
    """Take the idempotency key of each request for a run; what a key made before is returned."""
    if not wanted:
        return []
    reserving = [
        (
            "idempotency",
            key_of(tenant_id, request) | {"digest": request.body_digest, "run_id": run_id},
        )
        for request, run_id in wanted
    ]
    answers = await run_together(conn, reserving, db.timeout_s)
    out: list[Started | Conflict | None] = []
    for (request, _), (answer,) in zip(wanted, answers, strict=True):
        if answer["reserved"]:
            out.append(None)
            continue
        made = await run_sql(conn, "idempotency_read", key_of(tenant_id, request), db.timeout_s)
        out.append(made_before(made[0], request))
    return out


def made_before(made: Row, request: StartRun) -> Started | Conflict:
    """Return the run that the key of a request made before, if it was for the same body."""
    if made["body_digest"] != request.body_digest:
        return Conflict(
            f"Idempotency-Key {request.idempotency_key!r} was used for another body; use a new key",
            code="IDEMPOTENCY_KEY_REUSED",
            field="Idempotency-Key",
        )
    return Started(made["run_id"], made["session_id"], Status(made["status"]), replayed=True)


_SAY: Final = "say with on_busy what to do: enqueue, interrupt or steer"


def check_start(begun: Row, request: StartRun, *, instead: str = _SAY) -> None:
    """Raise `NotFound` or `Conflict` when a run cannot be started as asked; `instead` says what may
    be done while its session is busy.
    """
    if begun["agent_id"] is None:
        version = f" version {request.agent_version}" if request.agent_version else ""
        raise NotFound(
            f"no agent {request.agent!r}{version}; create it with `harness agents apply FILE`",
            code="AGENT_NOT_FOUND",
            field="agent_version" if request.agent_version else "agent",
            value=request.agent_version or request.agent,
        )
    if request.session_id is None:
        return
    if begun["session_id"] is None:
        session = encode("session", request.session_id)
        raise NotFound(f"no session {session}", field="session_id", value=session)
    if begun["closed_at"] is not None:
        raise Conflict("the session is closed; start a new one", session="closed")
    if request.on_busy == "reject" and begun["going_run_id"] is not None:
        raise Conflict(
            f"the session has a run that is still going; wait for it, cancel it, or {instead}",
            code="SESSION_BUSY",
            run_id=encode("run", begun["going_run_id"]),
        )
