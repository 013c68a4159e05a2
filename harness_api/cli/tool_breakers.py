"""`harness tools breakers`: which tools fail now and are not called, and calling one again."""

from __future__ import annotations

from typing import Annotated

import typer

from harness_api.cli.breaker_table import print_breakers
from harness_api.cli.options import Json, connect
from harness_api.cli.output import print_json


def breakers(as_json: Json = False) -> None:
    """List the tools that failed lately; one that is open is not called until its time."""
    with connect() as client:
        found = list(client.tools.breakers())
    print_breakers("tool", [(b.tool, b) for b in found], as_json=as_json)


def reset_breaker(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the tool.")],
    as_json: Json = False,
) -> None:
    """Forget the faults of a tool, so that it is called again at once."""
    with connect() as client:
        found = client.tools.reset_breaker(name)
    if as_json:
        print_json(found)
    else:
        print(f"{found.tool} is called again")
