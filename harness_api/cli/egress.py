"""`harness egress`: where the tenant's own requests may go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, connect, examples, group
from harness_api.cli.output import clock, print_json, print_pairs
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client import EgressRules

app = group("Say which hosts tools, webhooks and MCP servers of the tenant may be at.")


@app.command()
def show(as_json: Json = False) -> None:
    """Show the rules."""
    with connect() as client:
        _print(client.egress.get(), as_json)


@app.command(
    "set",
    epilog=examples(
        "harness egress set --allow api.example.com --allow '*.example.org'",
        "harness egress set --deny 203.0.113.0/24",
        "harness egress set --everywhere",
    ),
)
def set_rules(
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A host, *.name, address or network; repeatable. Nothing else passes."),
    ] = None,
    deny: Annotated[list[str] | None, typer.Option(help="Goes before --allow; repeatable.")] = None,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Let all public hosts pass, but for --deny.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Replace the rules; workers go by the new ones within a second."""
    if everywhere == bool(allow) and (everywhere or not deny):
        raise Invalid("give --allow, or --everywhere, and --deny if you like", code="USAGE")
    with connect() as client:
        _print(client.egress.set(allow or [], deny or []), as_json)


def _print(rules: EgressRules, as_json: bool) -> None:
    if as_json:
        print_json(rules)
        return
    by = f"{clock(rules.changed_at)} by {rules.changed_by}" if rules.changed_at else None
    print_pairs(
        {
            "allowed": rules.allow or "every public host",
            "denied": rules.deny or "none",
            "changed": by,
        }
    )
