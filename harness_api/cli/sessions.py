"""`harness sessions`: conversations that own runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, Limit, SessionId, connect, examples, group, pairs
from harness_api.cli.output import clean, print_json, print_pairs, print_table, short
from harness_api.cli.run_view import print_runs

if TYPE_CHECKING:
    from harness_api.client.types import Session, SessionMessage

app = group("Open sessions, look at them, close them.")


@app.command(epilog=examples("harness sessions create 'Quarterly report' --user-id ann"))
def create(
    title: Annotated[str | None, typer.Argument(metavar="[TITLE]")] = None,
    user_id: Annotated[str | None, typer.Option(help="Whose conversation it is.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(help="name=value; repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Open a session."""
    with connect() as client:
        session = client.sessions.create(
            title, user_id=user_id, metadata=pairs(metadata or [], "--metadata")
        )
    if as_json:
        print_json(session)
    else:
        print(session.id)


@app.command("list")
def list_sessions(
    user_id: Annotated[str | None, typer.Option(help="Only those of this user.")] = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List sessions, newest first."""
    with connect() as client:
        found = list(client.sessions.list(user_id=user_id, limit=limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "status", "created", "user", "title"),
        [(s.id, s.status, s.created_at, s.user_id, short(s.title or "")) for s in found],
        "No sessions.",
    )


@app.command()
def show(session_id: SessionId, limit: Limit = 20, as_json: Json = False) -> None:
    """Show a session and its newest runs."""
    with connect() as client:
        session = client.sessions.get(session_id)
        runs = list(client.sessions.runs(session_id, limit))
    if as_json:
        print_json({"session": session, "runs": runs})
        return
    _print(session)
    print()
    print_runs(runs)


@app.command()
def messages(session_id: SessionId, limit: Limit = 50, as_json: Json = False) -> None:
    """Show the newest messages of a session's runs, the oldest of them first."""
    with connect() as client:
        found = list(client.sessions.messages(session_id, limit))[::-1]
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("run", "n", "at", "role", "trust", "says"),
        [(m.run_id, m.n, m.created_at, m.role, m.trust, short(_said(m), 90)) for m in found],
        "Nothing was said yet.",
    )


def _said(message: SessionMessage) -> str:
    """Put a message into one line."""
    parts = (p.get("text") or p.get("content") or p.get("name") or "" for p in message.content)
    return " ".join(" ".join(str(part).split()) for part in parts)


@app.command()
def close(session_id: SessionId, as_json: Json = False) -> None:
    """Close a session for good; it stays readable."""
    with connect() as client:
        session = client.sessions.close(session_id)
    if as_json:
        print_json(session)
    else:
        print(f"{session.id} is {session.status}")


@app.command(epilog=examples("harness sessions cancel SESSION --reason 'wrong customer'"))
def cancel(
    session_id: SessionId,
    reason: Annotated[str, typer.Option(help="Kept with the runs.")] = "",
    as_json: Json = False,
) -> None:
    """Ask all runs of a session to stop; the session stays open."""
    with connect() as client:
        runs = client.sessions.cancel(session_id, reason)
    if as_json:
        print_json({"data": runs})
        return
    for run in runs:
        print(f"{run.id} is {run.status}")
    if not runs:
        print("No run of it is going.")


def _print(session: Session) -> None:
    print_pairs(
        {
            "session": session.id,
            "status": session.status,
            "title": session.title,
            "user": session.user_id,
            "created": session.created_at,
            "closed": session.closed_at,
            "metadata": session.metadata or None,
        }
    )
    if session.memory_summary:
        print(f"\nWhat it remembers:\n{clean(session.memory_summary)}")
