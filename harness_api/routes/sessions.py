"""Sessions: open, read, close, and list their runs."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.announce import announce_cancel
from harness_api.routes.ids import SessionId
from harness_api.routes.run_view import run_view
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.run_control import RunCancel
from harness_api.schemas.runs import RunView
from harness_api.schemas.sessions import SessionCreate, SessionMessageView, SessionView
from harness_common.commands import cancel_session
from harness_common.core.ids import encode
from harness_common.store.connection import Row
from harness_common.store.conversation import read_conversation
from harness_common.store.run_reads import RunFilter, list_runs, view_run
from harness_common.store.sessions import (
    close_session,
    create_session,
    list_sessions,
    read_session,
    status_of,
)

router = new_router("/v1/sessions", "sessions")

CanRead = Annotated[Caller, requires("sessions:read")]
CanWrite = Annotated[Caller, requires("sessions:write")]
CanReadRuns = Annotated[Caller, requires("runs:read")]
CanWriteRuns = Annotated[Caller, requires("runs:write")]
MessageCursor = Annotated[
    str | None,
    Query(pattern="^[0-9a-f]{32}[.][0-9]{1,9}$", description="`next_cursor` of the page before."),
]


def session_view(row: Row) -> SessionView:
    """Show a session."""
    head = row["head_run_id"]
    return SessionView(
        id=encode("session", row["id"]),
        title=row["title"],
        user_id=row["user_id"],
        metadata=row["metadata"],
        status=status_of(row).value,
        created_at=row["created_at"],
        closed_at=row["closed_at"],
        head_run_id=encode("run", head) if head else None,
        memory_summary=row["memory_summary"],
    )


@router.post("", status_code=201, operation_id="createSession", response_model=SessionView)
async def post_session(
    response: Response, services: Use, caller: CanWrite, body: SessionCreate | None = None
) -> SessionView:
    """Open a session."""
    given = body or SessionCreate()
    row = await create_session(
        services.db,
        caller.tenant_id,
        title=given.title,
        user_id=given.user_id,
        metadata=given.metadata,
        actor=caller.actor,
    )
    response.headers["Location"] = f"/v1/sessions/{encode('session', row['id'])}"
    return session_view(row)


@router.get("", operation_id="listSessions", response_model=Page[SessionView])
async def get_sessions(
    services: Use,
    caller: CanRead,
    user_id: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 50,
    cursor: IdCursor = None,
) -> Page[SessionView]:
    """List sessions, newest first."""
    rows = await list_sessions(
        services.db, caller.tenant_id, user_id=user_id, before=id_of(cursor), limit=limit + 1
    )
    data, next_cursor = page(rows, limit, session_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{session_id}", operation_id="getSession", response_model=SessionView)
async def get_session(session_id: SessionId, services: Use, caller: CanRead) -> SessionView:
    """Read a session."""
    return session_view(await read_session(services.db, caller.tenant_id, session_id))


@router.post("/{session_id}/close", operation_id="closeSession", response_model=SessionView)
async def post_close(session_id: SessionId, services: Use, caller: CanWrite) -> SessionView:
    """Close a session for good; it stays readable. 409 while a run of it is going."""
    return session_view(
        await close_session(services.db, caller.tenant_id, session_id, caller.actor)
    )


@router.post(
    "/{session_id}/cancel",
    status_code=202,
    operation_id="cancelSession",
    response_model=Page[RunView],
)
async def post_cancel(
    session_id: SessionId, services: Use, caller: CanWriteRuns, body: RunCancel | None = None
) -> Page[RunView]:
    """Ask all runs of a session that are not over to stop; the answer has those that were asked.
    The session stays open. Safe to repeat.
    """
    asked = await cancel_session(
        services.db,
        caller.tenant_id,
        session_id,
        by=caller.name,
        reason=body.reason if body else "",
        actor=caller.actor,
    )
    for one in asked:
        await announce_cancel(services, one.run_id, one.asked)
    data = [
        run_view(await view_run(services.db, caller.tenant_id, one.run_id)) for one in asked[:200]
    ]
    return Page(data=data)


@router.get("/{session_id}/runs", operation_id="listSessionRuns", response_model=Page[RunView])
async def get_session_runs(
    session_id: SessionId,
    services: Use,
    caller: CanReadRuns,
    limit: Limit = 50,
    cursor: IdCursor = None,
) -> Page[RunView]:
    """List the runs of a session, newest first."""
    await read_session(services.db, caller.tenant_id, session_id)
    rows = await list_runs(
        services.db,
        caller.tenant_id,
        RunFilter(session_id=session_id),
        before=id_of(cursor),
        limit=limit + 1,
    )
    data, next_cursor = page(rows, limit, run_view, "id")
    return Page(data=data, next_cursor=next_cursor)


def session_message_view(row: Row) -> SessionMessageView:
    """Show a message of a conversation."""
    kept = ("n", "step", "role", "trust", "created_at")
    return SessionMessageView(
        run_id=encode("run", row["run_id"]),
        content=row["body"]["content"],
        **{name: row[name] for name in kept},
    )


@router.get(
    "/{session_id}/messages",
    operation_id="listSessionMessages",
    response_model=Page[SessionMessageView],
)
async def get_session_messages(
    session_id: SessionId,
    services: Use,
    caller: CanReadRuns,
    limit: Limit = 50,
    cursor: MessageCursor = None,
) -> Page[SessionMessageView]:
    """List the messages of all runs of a session, the newest run's last first. What a retry took
    over from its source is there once.
    """
    await read_session(services.db, caller.tenant_id, session_id)
    before = None
    if cursor is not None:
        digits, n = cursor.split(".")
        before = (UUID(hex=digits), int(n))
    rows = await read_conversation(
        services.db, caller.tenant_id, session_id, before=before, limit=limit + 1
    )
    data, next_cursor = page(rows, limit, session_message_view, "run_id", "n")
    return Page(data=data, next_cursor=next_cursor)
