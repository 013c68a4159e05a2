"""Commands of `harness runs` for runs under way and for new ones from a checkpoint: `register`
adds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.bulk import (
    ManyId,
    Most,
    Selection,
    Since,
    Until,
    Where,
    Yes,
    check_target,
    run_bulk,
)
from harness_api.cli.options import Json, RunId, connect, examples
from harness_api.cli.output import print_json, print_pairs, print_table
from harness_api.cli.watch import Follow, Timeout, Wait, after_start, check_one

if TYPE_CHECKING:
    from harness_api.client import Client, Run

Reason = Annotated[str, typer.Option(help="Kept with the run.")]


def register(app: typer.Typer) -> None:
    """Add the commands to `harness runs`."""
    commands: dict[Callable[..., None], tuple[str, ...]] = {
        cancel: ("harness runs cancel RUN --reason 'wrong question'", _where("cancel")),
        pause: ("harness runs pause RUN", _where("pause")),
        resume: ("harness runs resume RUN", "harness runs resume --where status=paused --yes"),
        answer: (
            "harness runs answer RUN 'the blue one'",
            "harness runs answer RUN yes --call 2.1",
        ),
        steer: ("harness runs steer RUN 'only the last quarter'",),
        interrupt: ("harness runs interrupt RUN pause --step 4",),
        retry: (
            "harness runs retry RUN --from-step 4 --follow",
            "harness runs retry --where status=failed,error.code=LIMITED --since 2h",
        ),
        fork: (
            "harness runs fork RUN --step 2 --model openai/gpt-5-mini --follow",
            "harness runs fork RUN --dry-run --wait",
        ),
        lineage: ("harness runs lineage RUN",),
    }
    for command, lines in commands.items():
        app.command(epilog=examples(*lines))(command)


def _where(verb: str) -> str:
    return f"harness runs {verb} --where agent=analyst,tag.team=sales --since 1d"


def _each(
    verb: str,
    run_id: str | None,
    chosen: Selection,
    do: Callable[[Client, str], Run],
    as_json: bool,
) -> None:
    check_target(run_id, chosen.where)
    with connect() as client:
        if run_id is None:
            run_bulk(client, verb, chosen, lambda run: do(client, run.id), as_json=as_json)
            return
        run = do(client, run_id)
    _print(run, as_json)


def _print(run: Run, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    rests = " and will rest after the step under way" if run.pause_requested else ""
    print(f"{run.id} is {run.status}{rests if run.status != 'paused' else ''}")


def cancel(
    run_id: ManyId = None,
    reason: Reason = "",
    where: Where = None,
    since: Since = None,
    until: Until = None,
    limit: Most = 1000,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Ask a run to stop, with its children; a step that is under way may still end."""
    chosen = Selection(where or (), since, until, limit, yes)
    _each("cancel", run_id, chosen, lambda c, r: c.runs.cancel(r, reason), as_json)


def pause(
    run_id: ManyId = None,
    reason: Reason = "",
    where: Where = None,
    since: Since = None,
    until: Until = None,
    limit: Most = 1000,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let a run rest after the step under way, at no cost, until it is resumed."""
    chosen = Selection(where or (), since, until, limit, yes)
    _each("pause", run_id, chosen, lambda c, r: c.runs.pause(r, reason), as_json)


def resume(
    run_id: ManyId = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    limit: Most = 1000,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Let a paused run go on."""
    chosen = Selection(where or (), since, until, limit, yes)
    _each("resume", run_id, chosen, lambda c, r: c.runs.resume(r), as_json)


def answer(
    run_id: RunId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The answer, or one of the choices.")],
    call: Annotated[
        str | None, typer.Option(help="Which question (2.0), when several are open.")
    ] = None,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Answer a question of a run; `harness runs show RUN` shows what it asks."""
    with connect() as client:
        run = client.runs.answer(run_id, text, call)
        if follow:
            _follow(client, run, as_json)
            return
    _print(run, as_json)


def _follow(client: Client, run: Run, as_json: bool) -> None:
    after_start(client, run, follow=True, wait=False, timeout_s=None, as_json=as_json)


def steer(
    run_id: RunId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What it should know.")],
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Give a run under way a message that its next model step sees."""
    with connect() as client:
        run = client.runs.steer(run_id, text)
        if follow:
            _follow(client, run, as_json)
            return
    _print(run, as_json)


def interrupt(
    run_id: RunId,
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="cancel, pause or steer.")],
    step: Annotated[
        int, typer.Option(min=1, help="The step that has to be due: of `harness runs show`, + 1.")
    ],
    text: Annotated[str, typer.Option(help="The reason, or for steer the message.")] = "",
    as_json: Json = False,
) -> None:
    """Cancel, pause or steer a run, but only while one certain step is due."""
    with connect() as client:
        run = client.runs.interrupt(run_id, kind, step=step, text=text)
    _print(run, as_json)


def retry(  # noqa: PLR0917 - typer wants it so
    run_id: ManyId = None,
    from_step: Annotated[
        int | None, typer.Option(min=1, help="Do this step and what follows anew.")
    ] = None,
    follow: Follow = False,
    wait: Wait = False,
    wait_timeout: Timeout = None,
    where: Where = None,
    since: Since = None,
    until: Until = None,
    limit: Most = 1000,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Start a new run from the last checkpoint of one that failed or was cancelled.

    With --where runs that already have a retry are left out, so that repeating it does nothing
    twice, and children, which a retry of their parent goes on with; parent=RUN names those of one.
    """
    check_one(follow, wait)
    check_target(run_id, where)
    with connect() as client:
        if run_id is None:
            chosen = Selection(where or (), since, until, limit, yes)
            run_bulk(
                client,
                "retry",
                chosen,
                lambda run: client.runs.retry(run.id, from_step, if_not_retried=True),
                as_json=as_json,
            )
            return
        run = client.runs.retry(run_id, from_step)
        after_start(client, run, follow=follow, wait=wait, timeout_s=wait_timeout, as_json=as_json)


def fork(  # noqa: PLR0917 - typer wants it so
    run_id: RunId,
    step: Annotated[
        int | None, typer.Option(min=0, help="Committed steps to keep; default: all.")
    ] = None,
    input: Annotated[
        str | None, typer.Option(help="At step 0 another question, later a message to the model.")
    ] = None,
    agent_version: Annotated[int | None, typer.Option("--version", min=1)] = None,
    model: Annotated[str | None, typer.Option(help="provider/model")] = None,
    tool: Annotated[list[str] | None, typer.Option(help="Instead of the agent's; repeatable.")] = (
        None
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Answer model and tools from the record.")
    ] = False,
    follow: Follow = False,
    wait: Wait = False,
    wait_timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Start a new run from a checkpoint of any run, with something changed."""
    check_one(follow, wait)
    with connect() as client:
        run = client.runs.fork(
            run_id,
            step=step,
            input=input,
            agent_version=agent_version,
            model=model,
            tools=tool or None,
            dry_run=dry_run,
        )
        after_start(client, run, follow=follow, wait=wait, timeout_s=wait_timeout, as_json=as_json)


def lineage(run_id: RunId, as_json: Json = False) -> None:
    """Show where a run comes from and what came of it."""
    with connect() as client:
        found = client.runs.lineage(run_id)
    if as_json:
        print_json(found)
        return
    print_pairs({"run": found.run_id})
    print_table(
        ("relation", "run", "status", "agent", "at", "created", "changed"),
        [
            (
                one.relation,
                one.run_id,
                one.status,
                f"{one.agent.name} v{one.agent.version}",
                one.call or (f"step {one.step}" if one.step is not None else None),
                one.created_at,
                one.overrides or None,
            )
            for one in (*found.ancestors, *found.children, *found.forks)
        ],
        "No run before or after it.",
    )
