"""`harness effects`: calls of which nobody knows whether they took effect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, Limit, RunId, connect, examples, group
from harness_api.cli.output import print_json, print_pairs, print_table, short

if TYPE_CHECKING:
    from harness_api.client import Effect

app = group("Unknown effects: look at them, say what became of them.")

CallArgument = Annotated[str, typer.Argument(metavar="CALL", help="step.index, for example 2.0")]


@app.command("list", epilog=examples("harness effects list"))
def list_effects(
    run: Annotated[str | None, typer.Option(help="Only those of this run.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the calls that a person has to decide."""
    with connect() as client:
        found = list(client.effects.list(run_id=run, limit=limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("run", "call", "tool", "started", "worker", "tries", "why", "arguments"),
        [
            (
                e.run_id, e.call, e.tool, e.started_at, e.worker, e.attempts,
                short(e.why or "", 50), short(str(e.arguments), 60),
            )
            for e in found
        ],
        "No unknown effects.",
    )  # fmt: skip


@app.command(epilog=examples("harness effects show RUN 2.0"))
def show(run_id: RunId, call: CallArgument, as_json: Json = False) -> None:
    """Show one call: what was asked, who started it, what is known of it."""
    with connect() as client:
        found = client.effects.get(run_id, call)
    if as_json:
        print_json(found)
    else:
        _print(found)


@app.command(
    epilog=examples(
        "harness effects resolve RUN 2.0 succeeded --reason 'the bank shows it' --result 'paid'",
        "harness effects resolve RUN 2.0 run_again --reason 'the bank has no such payment'",
    )
)
def resolve(
    run_id: RunId,
    call: CallArgument,
    outcome: Annotated[
        str, typer.Argument(metavar="OUTCOME", help="succeeded, failed or run_again")
    ],
    reason: Annotated[str, typer.Option(help="How that is known; kept for good.")],
    result: Annotated[str | None, typer.Option(help="What the model is told.")] = None,
    as_json: Json = False,
) -> None:
    """Say what became of an unknown effect; its run goes on when none is left."""
    with connect() as client:
        found = client.effects.resolve(run_id, call, outcome, reason, result)
    if as_json:
        print_json(found)
    else:
        print(f"{found.run_id} {found.call} is {found.status}; the run is {found.run_status}")


def _print(found: Effect) -> None:
    said = found.resolution or {}
    print_pairs(
        {
            "run": f"{found.run_id} ({found.run_status}, agent {found.acting or found.agent})",
            "call": found.call,
            "tool": found.tool,
            "arguments": found.arguments,
            "status": found.status,
            "why": found.why,
            "started": found.started_at,
            "by": found.worker,
            "attempts": f"{found.attempts} of {found.authorised} allowed",
            "idempotency key": found.idempotency_key,
            "result": short(found.result, 200) if found.result else None,
            "evidence": found.evidence,
            "resolved": f"{said['outcome']} by {said['by']} at {said['at']}: {said['reason']}"
            if said
            else None,
        }
    )
    if found.status == "unknown":
        print(
            f"\n`harness effects resolve {found.run_id} {found.call} "
            "succeeded|failed|run_again --reason '…'` decides."
        )
