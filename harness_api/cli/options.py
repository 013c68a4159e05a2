"""Options and helpers that several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client import Client

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON: one document, or one line an item for streams.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id: run_…")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id: sess_…")]


def connect() -> Client:
    """Return a client of the server that arguments, environment or `harness dev` name."""
    from harness_api.client import Client

    return Client(retries=3)


def examples(*lines: str) -> str:
    """Return the epilog of a command."""
    return "\n\n".join(["Examples:", *lines])


def pairs(texts: list[str], option: str) -> dict[str, str]:
    """Read `name=value` texts; raises `Invalid`."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Invalid(f"{option} takes name=value, not {text!r}", code="USAGE", field=option)
        found[name] = value
    return found


def group(help_text: str) -> typer.Typer:
    """Make a group of commands."""
    return typer.Typer(help=help_text, no_args_is_help=True)
