"""What commands that start or watch a run do besides: follow it, wait for it, end with its exit
code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli import follow as live
from harness_api.cli.output import print_json, print_json_line, say, scripted
from harness_api.cli.run_view import OUTCOME_OK, print_outcome
from harness_common.core.errors import HarnessError, Invalid

if TYPE_CHECKING:
    from harness_api.client import Client, Run

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Show it live until it is over or needs a person.")
]
Wait = Annotated[
    bool, typer.Option("--wait", "-w", help="Wait until it is over; print its result.")
]
Timeout = Annotated[
    float | None, typer.Option("--wait-timeout", min=0, help="Seconds to wait at most.")
]


def check_one(follow: bool, wait: bool) -> None:
    """Refuse two ways of watching at once."""
    if follow and wait:
        raise Invalid("--follow and --wait exclude each other", code="USAGE")


def after_start(
    client: Client, run: Run, *, follow: bool, wait: bool, timeout_s: float | None, as_json: bool
) -> None:
    """Do what was asked besides starting."""
    if follow:
        if not as_json:
            title(run)
        follow_run(client, run.id, after=0, as_json=as_json)
    elif wait:
        if not as_json:
            say(run.id)
        wait_for(client, run.id, timeout_s, as_json)
    elif as_json:
        print_json(run)
    else:
        print(run.id)
        say(f"It is {run.status}. Watch it with `harness runs follow {run.id}`.")


def title(run: Run) -> None:
    """Print the line above a run that is followed."""
    print(f"{run.id}  {run.agent.name} v{run.agent.version}{scripted(run.scripted)}", flush=True)


def follow_run(client: Client, run_id: str, *, after: int, as_json: bool) -> None:
    """Show a run live, then how it ended or what it waits for."""
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
    exit_as(run)


def wait_for(client: Client, run_id: str, timeout_s: float | None, as_json: bool) -> None:
    """Wait for a run, then print how it ended or what it waits for."""
    try:
        run = client.runs.wait(run_id, timeout_s)
    except TimeoutError as error:
        raise HarnessError(str(error), code="TIMEOUT", run_id=run_id) from error
    if as_json:
        print_json(run)
    else:
        print(f"{run.status}{scripted(run.scripted)}")
        print_outcome(run)
    exit_as(run)


def exit_as(run: Run) -> None:
    """End with the exit code that tells how a run ended."""
    if run.status != OUTCOME_OK:
        raise typer.Exit(1)
