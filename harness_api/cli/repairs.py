"""`harness repairs`: how often answers of models had to be repaired to be read."""

from __future__ import annotations

from typing import Annotated

import typer

from harness_api.cli.options import Json, connect, examples, group
from harness_api.cli.output import print_json, print_table

app = group("See how often models' answers had to be repaired to be read.")


@app.callback()
def _group() -> None:
    """Keep `stats` a command of its own."""


@app.command(
    epilog=examples("harness repairs stats", "harness repairs stats --month 2026-11 --agent sales")
)
def stats(
    month: Annotated[
        str | None, typer.Option(help="A month in UTC, like 2026-11. Default: the current one.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only of this agent.")] = None,
    as_json: Json = False,
) -> None:
    """Count the repairs of a month by agent, model and kind, the most frequent first."""
    with connect() as client:
        found = client.repairs.stats(month, agent=agent)
    if as_json:
        print_json(found)
        return
    print_table(
        ("agent", "model", "kind", "repairs", "answers"),
        [(c.agent, c.model, c.kind, c.repairs, c.answers) for c in found.data],
        f"No answer was repaired in {found.month}.",
    )
    if found.data:
        print(f"\n{found.repairs} repairs in {found.month}. Each is in the events of its run:")
        print("`harness runs events RUN`, answer.repaired, `repair_log`.")
