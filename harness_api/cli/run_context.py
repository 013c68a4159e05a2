"""`harness runs context`: what the model saw in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, RunId, connect, examples
from harness_api.cli.output import clean, print_json, print_pairs, print_table, short

if TYPE_CHECKING:
    from harness_api.client.types import Context, ContextMessage


def register(app: typer.Typer) -> None:
    """Add the command to `harness runs`."""
    app.command(
        epilog=examples(
            "harness runs context RUN 7",
            "harness runs context RUN 7 --full",
            "harness runs context RUN 7 --json | jq '.messages[].tokens'",
        )
    )(context)


def context(
    run_id: RunId,
    step: Annotated[int, typer.Argument(metavar="STEP", min=1, help="A model step of the run.")],
    full: Annotated[bool, typer.Option("--full", help="Print every message whole.")] = False,
    as_json: Json = False,
) -> None:
    """Show what the model saw in a step, and what was left out."""
    with connect() as client:
        found = client.runs.context(run_id, step)
    if as_json:
        print_json(found)
    else:
        print_context(found, full=full)


def print_context(found: Context, *, full: bool) -> None:
    """Print a prompt: its size, its parts, what was left out."""
    tokens = found.tokens
    print_pairs(
        {
            "run": found.run_id,
            "step": found.step,
            "model": found.model,
            "size": f"{tokens.total} tokens (estimated; limit {tokens.limit}, the model counted "
            f"{tokens.reported_input})",
            "of these": ", ".join(f"{name} {count}" for name, count in tokens.by.items()),
            "tools": ", ".join(tool.name for tool in found.tools) or None,
        }
    )
    if found.system:
        print(f"\nSystem:\n{clean(found.system) if full else short(found.system, 200)}")
    print()
    if full:
        for message in found.messages:
            print(f"--- {_where(found, message)}  {message.role}  {message.tokens} tokens")
            print(clean(message.text))
    else:
        print_table(
            ("message", "role", "kind", "trust", "tokens", "text"),
            [
                (_where(found, m), m.role, m.kind, m.trust, m.tokens, short(m.text, 60))
                for m in found.messages
            ],
            "No messages.",
        )
    for left in found.left_out:
        by = f" (by the compaction in step {left.step})" if left.step else ""
        what = f"{left.count} {left.what}" if left.count > 1 else left.what
        print(f"Left out: {what}: {left.why}{by}")


def _where(found: Context, message: ContextMessage) -> str:
    if message.n is None:
        return "-"
    return str(message.n) if message.run_id == found.run_id else f"{message.run_id}:{message.n}"
