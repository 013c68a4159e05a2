"""Sessions as conversations: what was said, the answer as it is written, and saying more."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from fastapi import Query, Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor
from harness_api.routes import runs, sessions
from harness_api.routes.ids import RunId, SessionId
from harness_api.routes.run_view import run_view
from harness_api.routes.sessions import MessageCursor
from harness_api.schemas.run_control import RunCancel
from harness_api.schemas.runs import RunCreate, RunView
from harness_api.schemas.sessions import SessionMessageView
from harness_api.sse import stream_events
from harness_common.core.ids import decode, encode
from harness_common.core.run import TERMINAL
from harness_common.store.agents import list_agent_names
from harness_common.store.run_reads import view_run

router = new_pages("/console/sessions")

CanRead = Annotated[Visit, requires_page("sessions:read")]
CanReadRuns = Annotated[Visit, requires_page("runs:read")]
CanWrite = Annotated[Visit, requires_page("sessions:write")]
CanStart = Annotated[Visit, requires_page("runs:write")]
LIMIT: Final = 50
MESSAGES: Final = 60
"""Messages a page of a conversation."""
_RUNS: Final = 100
_AGENTS: Final = 200
_OVER: Final = frozenset(str(status) for status in TERMINAL)
_ONCE: Final = re.compile("[0-9a-f]{32}")


@dataclass(slots=True)
class Turn:
    """A run within its conversation."""

    run_id: str
    run: RunView | None
    """None when it is older than the runs that a page looks at."""
    messages: list[SessionMessageView] = field(default_factory=list)


def turns_of(messages: Sequence[SessionMessageView], found: Sequence[RunView]) -> list[Turn]:
    """Sort messages, newest first, into the turns of a conversation, oldest first."""
    by_id = {run.id: run for run in found}
    turns: list[Turn] = []
    for message in reversed(messages):
        if not turns or turns[-1].run_id != message.run_id:
            turns.append(Turn(message.run_id, by_id.get(message.run_id)))
        turns[-1].messages.append(message)
    return turns


async def _agent_names(services: Services, visit: Visit) -> list[str]:
    if not visit.may("runs:write"):
        return []
    return await list_agent_names(services.db, visit.caller.tenant_id, limit=_AGENTS)


@router.get("")
async def sessions_page(
    services: Use,
    visit: CanRead,
    user_id: Annotated[str, Query(max_length=200)] = "",
    cursor: IdCursor = None,
) -> Response:
    """List sessions, newest first."""
    found = await sessions.get_sessions(
        services, visit.caller, user_id=user_id or None, limit=LIMIT, cursor=cursor
    )
    return visit.page(
        "sessions.html",
        sessions=found.data,
        next_cursor=found.next_cursor,
        cursor=cursor,
        user_id=user_id,
        agents=await _agent_names(services, visit),
        once=secrets.token_hex(16),
    )


@router.post("")
async def begin(services: Use, visit: CanStart) -> Response:
    """Begin a conversation with a first message."""
    run = await _say(services, visit, None)
    return visit.go(f"/console/sessions/{run.session_id}")


@router.get("/{session_id}")
async def session_page(
    session_id: SessionId, services: Use, visit: CanReadRuns, cursor: MessageCursor = None
) -> Response:
    """Show a session as a conversation, its last messages first."""
    session = await sessions.get_session(session_id, services, visit.caller)
    said = await sessions.get_session_messages(
        session_id, services, visit.caller, limit=MESSAGES, cursor=cursor
    )
    found = await sessions.get_session_runs(session_id, services, visit.caller, limit=_RUNS)
    going = [run for run in found.data if run.status not in _OVER]
    current, after = None, 0
    if going:  # the oldest: those made after it wait for it
        run_id = decode("run", going[-1].id)
        row = await view_run(services.db, visit.caller.tenant_id, run_id)
        current, after = run_view(row), row["next_seq"] - 1
    return visit.page(
        "session.html",
        session=session,
        turns=turns_of(said.data, found.data),
        earlier=said.next_cursor,
        cursor=cursor,
        current=current,
        going=bool(going),
        waiting=going[-2::-1] if len(going) > 1 else [],
        agent=found.data[0].agent.name if found.data else "",
        after=after,
        agents=await _agent_names(services, visit),
        once=secrets.token_hex(16),
    )


@router.get("/{session_id}/runs/{run_id}/stream")
async def stream(
    session_id: SessionId,
    run_id: RunId,
    services: Use,
    visit: CanReadRuns,
    after: Annotated[int, Query(ge=0, lt=2**31)] = 0,
) -> Response:
    """Follow a run of the session, as `GET /v1/runs/{run_id}/stream` does."""
    del session_id
    await view_run(services.db, visit.caller.tenant_id, run_id)  # 404 before 200
    last = visit.request.headers.get("last-event-id", "")
    place = int(last) if re.fullmatch("[0-9]{1,9}", last) else after
    return stream_events(services, visit.caller, run_id, place)


@router.post("/{session_id}/messages")
async def post_message(session_id: SessionId, services: Use, visit: CanStart) -> Response:
    """Say something: a new run, or what `on_busy` says while the last one is going."""
    shown = encode("session", session_id)
    await _say(services, visit, shown)
    return visit.go(f"/console/sessions/{shown}")


async def _say(services: Services, visit: Visit, session_id: str | None) -> RunView:
    form: dict[str, Any] = {
        "agent": visit.form.get("agent", ""),
        "input": visit.form.get("text", ""),
    }
    if session_id is not None:
        form |= {"session_id": session_id, "on_busy": visit.form.get("on_busy") or "reject"}
    once = visit.form.get("once", "")
    return await runs.create_run(
        RunCreate(**form),
        visit.request,
        Response(),
        services,
        visit.caller,
        f"console-{once}" if _ONCE.fullmatch(once) else None,
    )


@router.post("/{session_id}/cancel")
async def cancel(session_id: SessionId, services: Use, visit: CanStart) -> Response:
    """Ask all runs of the session to stop."""
    reason = visit.form.get("reason", "")
    asked = await sessions.post_cancel(session_id, services, visit.caller, RunCancel(reason=reason))
    count = len(asked.data)
    said = (
        f"Asked {count} run{'' if count == 1 else 's'} to stop." if count else "Nothing is going."
    )
    return visit.go(f"/console/sessions/{encode('session', session_id)}", said)


@router.post("/{session_id}/close")
async def close(session_id: SessionId, services: Use, visit: CanWrite) -> Response:
    """Close a session for good."""
    await sessions.post_close(session_id, services, visit.caller)
    shown = encode("session", session_id)
    return visit.go(f"/console/sessions/{shown}", "Closed. It stays readable.")
