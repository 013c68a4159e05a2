"""`harness runs`: start, list, show, follow. What changes runs under way is in `run_control`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness_api.cli import follow as live
from harness_api.cli.files import read_object
from harness_api.cli.options import Json, Limit, RunId, connect, examples, group, pairs
from harness_api.cli.output import print_json, print_json_line, say
from harness_api.cli.run_view import print_run, print_runs
from harness_api.cli.watch import (
    Follow,
    Timeout,
    Wait,
    after_start,
    check_one,
    follow_run,
    title,
    wait_for,
)
from harness_api.cli.when import moment
from harness_common.core.errors import Invalid

app = group("Start runs, watch them, stop them.")


@app.command(
    epilog=examples(
        "harness runs submit analyst 'Which car is the lightest?' --follow",
        "harness runs submit analyst - --wait --json < question.txt",
        "harness runs submit analyst 'Again' --session SESSION --tag a=b",
        "harness runs submit analyst 'Rather this' --session SESSION --on-busy interrupt",
    )
    + "\n\nWith --follow or --wait the exit code is 0 if the run succeeded, else 1."
)
def submit(  # noqa: PLR0917 - typer wants it so
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of an agent.")],
    text: Annotated[
        str, typer.Argument(metavar="INPUT", help="What it is asked; - reads standard input.")
    ],
    version: Annotated[int | None, typer.Option(min=1, help="Of the agent.")] = None,
    skill: Annotated[
        list[str] | None, typer.Option(help="A skill, name or name@version; repeatable.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="A session to go on with: sess_…")] = None,
    title: Annotated[str | None, typer.Option(help="The title of a new session.")] = None,
    user_id: Annotated[str | None, typer.Option(help="Whose run it is.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="name=value; repeatable.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="0 goes first.")] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, help="Model answers at most.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens at most.")] = None,
    max_cost_usd: Annotated[float | None, typer.Option(min=0, help="Cost at most.")] = None,
    timeout_s: Annotated[float | None, typer.Option(min=0, help="Wall clock of the run.")] = None,
    on_busy: Annotated[
        str | None,
        typer.Option(
            help="While the session's last run is going: reject, enqueue, interrupt or steer."
        ),
    ] = None,
    output_schema: Annotated[
        Path | None, typer.Option(help="A file with the JSON Schema that the output has to fit.")
    ] = None,
    concurrency_key: Annotated[str | None, typer.Option(help="Runs of one key take turns.")] = None,
    concurrency_max: Annotated[
        int | None, typer.Option(min=1, help="How many of the key run at once; default 1.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="The same key within 24 h gives the same run.")
    ] = None,
    follow: Follow = False,
    wait: Wait = False,
    wait_timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Start a run."""
    check_one(follow, wait)
    tags = pairs(tag or [], "--tag")
    question = _read_stdin() if text == "-" else text
    schema = read_object(output_schema) if output_schema is not None else None
    with connect() as client:
        run = client.runs.create(
            agent,
            question,
            agent_version=version,
            skills=skill or (),
            session_id=session,
            title=title,
            user_id=user_id,
            tags=tags,
            priority=priority,
            max_turns=max_turns,
            max_tokens=max_tokens,
            max_cost_usd=max_cost_usd,
            timeout_s=timeout_s,
            on_busy=on_busy,
            output_schema=schema,
            concurrency_key=concurrency_key,
            concurrency_max=concurrency_max,
            idempotency_key=idempotency_key,
        )
        if on_busy == "steer" and run.input != question:
            say(f"{run.id} is under way and was given the message.")
        after_start(client, run, follow=follow, wait=wait, timeout_s=wait_timeout, as_json=as_json)


@app.command(
    "list",
    epilog=examples(
        "harness runs list --status running --tag team=sales",
        "harness runs list --status failed --error-code LIMITED --since 2h --not-retried",
    ),
)
def list_runs(  # noqa: PLR0917 - typer wants it so
    status: Annotated[list[str] | None, typer.Option(help="Repeatable.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    session: Annotated[str | None, typer.Option(help="Only runs of this session.")] = None,
    parent: Annotated[str | None, typer.Option(help="Only children of this run.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="name=value; all must match.")] = None,
    error_code: Annotated[str | None, typer.Option(help="Only those with this error.")] = None,
    stop_reason: Annotated[str | None, typer.Option(help="Only those that ended so.")] = None,
    since: Annotated[str | None, typer.Option(help="Made since: 2h, 7d or a time.")] = None,
    until: Annotated[str | None, typer.Option(help="Made before: 2h, 7d or a time.")] = None,
    retried: Annotated[
        bool | None, typer.Option("--retried/--not-retried", help="Whether a retry was made.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Only those whose input or agent has these words.")
    ] = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """List runs, newest first."""
    after, before = moment(since, "--since"), moment(until, "--until")
    with connect() as client:
        found = list(
            client.runs.list(
                status=status or None,
                agent=agent,
                session_id=session,
                parent=parent,
                tags=pairs(tag or [], "--tag"),
                error_code=error_code,
                stop_reason=stop_reason,
                created_after=after,
                created_before=before,
                retried=retried,
                text=text,
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
            title(run)
        follow_run(client, run_id, after=after, as_json=as_json)


@app.command()
def wait(run_id: RunId, timeout: Timeout = None, as_json: Json = False) -> None:
    """Wait until a run is over or needs a person; exit code 0 if it succeeded, else 1."""
    with connect() as client:
        wait_for(client, run_id, timeout, as_json)


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


def _read_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise Invalid(f"Standard input is not text: {error}", code="USAGE") from error
