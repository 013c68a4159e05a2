"""`harness models`: which models fail now and are passed over, and asking one again."""

from __future__ import annotations

from typing import Annotated

import typer

from harness_api.cli.breaker_table import print_breakers
from harness_api.cli.options import Json, connect, examples
from harness_api.cli.output import print_json

app = typer.Typer(help="Models that fail, and are passed over by agents that have another.")


@app.command(epilog=examples("harness models breakers"))
def breakers(as_json: Json = False) -> None:
    """List the models that failed lately; one that is open is passed over until its time."""
    with connect() as client:
        found = list(client.models.breakers())
    print_breakers("model", [(b.model, b) for b in found], as_json=as_json)


@app.command("reset-breaker", epilog=examples("harness models reset-breaker openai/gpt-5-mini"))
def reset_breaker(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model, as provider/model.")],
    as_json: Json = False,
) -> None:
    """Forget the faults of a model, so that it is asked again at once."""
    with connect() as client:
        found = client.models.reset_breaker(name)
    if as_json:
        print_json(found)
    else:
        print(f"{found.model} is asked again")
