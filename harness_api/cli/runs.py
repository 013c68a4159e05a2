"""`harness runs`: start, list, show, follow, cancel, retry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli import follow as live
from harness_api.cli.options import Json, Limit, RunId, connect, examples, group, pairs
from harness_api.cli.output import print_json, print_json_line, say, scripted
from harness_api.cli.run_view import OUTCOME_OK, print_outcome, print_run, print_runs
from harness_common.core.errors import HarnessError, Invalid

if TYPE_CHECKING:
    from harness_api.client import Client, Run

app = group("Start runs, watch them, stop them.")

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Show it live until it is over or needs a person.")
]
Wait = Annotated[
    bool, typer.Option("--wait", "-w", help="Wait until it is over; print its result.")
]
Timeout = Annotated[
    float | None, typer.Option("--wait-timeout", min=0, help="Seconds to wait at most.")
]


@app.command(
    epilog=examples(
        "harness runs submit analyst 'Which car is the lightest?' --follow",
        "harness runs submit analyst - --wait --json < question.txt",
        "harness runs submit analyst 'Again' --session SESSION --tag a=b",
    )
    + "\n\nWith --follow or --wait the exit code is 0 if the run succeeded, else 1."
)
def submit(  # noqa: PLR0917 - typer wants it so
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of an agent.")],
    text: Annotated[
        str, typer.Argument(metavar="INPUT", help="What it is asked; - reads standard input.")
    ],
    version: Annotated[int | None, typer.Option(min=1, help="Of the agent.")] = None,
    session: Annotated[str | None, typer.Option(help="A session to go on with: sess_…")] = None,
    title: Annotated[str | None, typer.Option(help="The title of a new session.")] = None,
    user_id: Annotated[str | None, typer.Option(help="Whose run it is.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="name=value; repeatable.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="0 goes first.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Model answers at most.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens at most.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option(min=0, help="Cost at most.")] = None,
    timeout_s: Annotated[float | None, typer.Option(min=0, help="Wall clock of the run.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key within 24 h gives the same run.")
    ] = None,
    follow: Follow = False,
    wait: Wait = False,
    wait_timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Start a run."""
    _check_one(follow, wait)
    tags = pairs(tag or [], "--tag")
    question = _read_stdin() if text == "-" else text
    with connect() as client:
        run = client.runs.create(
            agent,
            question,
            agent_version=version,
            session_id=session,
            title=title,
            user_id=user_id,
            tags=tags,
            priority=priority,
            max_turns=max_turns,
            max_tokens=max_tokens,
            max_cost_usd=max_cost_usd,
            timeout_s=timeout_s,
            idempotency_key=idempotency_key,
        )
        _after_start(client, run, follow=follow, wait=wait, timeout_s=wait_timeout, as_json=as_json)


@app.command("list", epilog=examples("harness runs list --status running --tag team=sales"))
def list_runs(
    status: Annotated[list[str] | None, typer.Option(help="Repeatable.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    session: Annotated[str | None, typer.Option(help="Only runs of this session.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="name=value; all must match.")] = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    with connect() as client:
        found = list(
            client.runs.list(
                status=status or None,
                agent=agent,
                session_id=session,
                tags=pairs(tag or [], "--tag"),
                limit=limit,
            )
        )
    if as_json:
        print_json({"data": found})
    else:
        print_runs(found)


@app.command()
def show(run_id: RunId, as_json: Json = False) -> None:
    """Show a run: its state, the timeline of its steps, its result."""
    with connect() as client:
        run = client.runs.get(run_id)
        steps = list(client.runs.steps(run_id))
        attempts = list(client.runs.attempts(run_id))
        artifacts = list(client.runs.artifacts(run_id))
    if as_json:
        found = {"run": run, "steps": steps, "attempts": attempts, "artifacts": artifacts}
        print_json(found)
    else:
        print_run(run, steps, attempts, artifacts)


@app.command(
    epilog=examples("harness runs follow RUN", "harness runs follow RUN --json | jq .type")
)
def follow(
    run_id: RunId,
    after: Annotated[int, typer.Option(min=0, help="Only events with a greater seq.")] = 0,
    as_json: Json = False,
) -> None:
    """Show a run live until it is over or needs a person; exit code 0 if it succeeded, else 1."""
    with connect() as client:
        run = client.runs.get(run_id)
        if not as_json:
            _title(run)
        _follow(client, run_id, after=after, as_json=as_json)


@app.command()
def wait(run_id: RunId, timeout: Timeout = None, as_json: Json = False) -> None:
    """Wait until a run is over or needs a person; exit code 0 if it succeeded, else 1."""
    with connect() as client:
        _wait(client, run_id, timeout, as_json)


@app.command(epilog=examples("harness runs cancel RUN --reason 'wrong question'"))
def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option(help="Kept with the run.")] = "",
    as_json: Json = False,
) -> None:
    """Ask a run to stop; a step that is under way may still end."""
    with connect() as client:
        run = client.runs.cancel(run_id, reason)
    if as_json:
        print_json(run)
    else:
        print(f"{run.id} is {run.status}")


@app.command()
def retry(
    run_id: RunId,
    follow: Follow = False,
    wait: Wait = False,
    wait_timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Start a new run from the last checkpoint of one that failed or was cancelled."""
    _check_one(follow, wait)
    with connect() as client:
        run = client.runs.retry(run_id)
        _after_start(client, run, follow=follow, wait=wait, timeout_s=wait_timeout, as_json=as_json)


@app.command()
def events(
    run_id: RunId,
    after: Annotated[int, typer.Option(min=0, help="Only events with a greater seq.")] = 0,
    as_json: Json = False,
) -> None:
    """Print the events a run has now. With --json, one line each."""
    view = live.View(run_id)
    with connect() as client:
        for event in client.runs.events(run_id, after):
            if as_json:
                print_json_line(event)
            else:
                print(f"{event.seq:>5}  {event.type:<20}  {view.take(event)}".rstrip())


def _check_one(follow: bool, wait: bool) -> None:
    if follow and wait:
        raise Invalid("--follow and --wait exclude each other", code="USAGE")


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise Invalid(f"Standard input is not text: {error}", code="USAGE") from error


def _after_start(
    client: Client, run: Run, *, follow: bool, wait: bool, timeout_s: float | None, as_json: bool
) -> None:
    """Do what was asked besides starting."""
    if follow:
        if not as_json:
            _title(run)
        _follow(client, run.id, after=0, as_json=as_json)
    elif wait:
        if not as_json:
            say(run.id)
        _wait(client, run.id, timeout_s, as_json)
    elif as_json:
        print_json(run)
    else:
        print(run.id)
        say(f"It is {run.status}. Watch it with `harness runs follow {run.id}`.")


def _title(run: Run) -> None:
    print(f"{run.id}  {run.agent.name} v{run.agent.version}{scripted(run.scripted)}", flush=True)


def _follow(client: Client, run_id: str, *, after: int, as_json: bool) -> None:
    try:
        live.follow(client, run_id, after=after, as_json=as_json)
    except KeyboardInterrupt:
        say(f"\nNo longer watching; the run goes on. Again: `harness runs follow {run_id}`")
        raise
    run = client.runs.get(run_id)
    if as_json:
        print_json_line({"type": "result", "run": run.model_dump(mode="json")})
    else:
        print_outcome(run)
    _exit(run)


def _wait(client: Client, run_id: str, timeout_s: float | None, as_json: bool) -> None:
    try:
        run = client.runs.wait(run_id, timeout_s)
    except TimeoutError as error:
        raise HarnessError(str(error), code="TIMEOUT", run_id=run_id) from error
    if as_json:
        print_json(run)
    else:
        print(f"{run.status}{scripted(run.scripted)}")
        print_outcome(run)
    _exit(run)


def _exit(run: Run) -> None:
    if run.status != OUTCOME_OK:
        raise typer.Exit(1)
