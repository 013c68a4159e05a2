"""`harness agents graph` and `harness runs graph`: pictures of graphs, or JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, RunId, connect, examples
from harness_api.cli.output import clean, print_json, print_table

if TYPE_CHECKING:
    from harness_api.client import Graph


class PictureFormat(StrEnum):
    """How a graph is written."""

    MERMAID = "mermaid"
    DOT = "dot"
    TABLE = "table"


Format = Annotated[
    PictureFormat,
    typer.Option("--format", "-f", help="mermaid (for Markdown), dot (for Graphviz) or table."),
]


def of_agent(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    version: Annotated[int | None, typer.Option(min=1, help="Default: the newest.")] = None,
    picture: Format = PictureFormat.MERMAID,
    as_json: Json = False,
) -> None:
    """Draw the graph of an agent of `kind: graph`."""
    with connect() as client:
        _print(client.agents.graph(name, version), picture, as_json=as_json)


def of_run(run: RunId, picture: Format = PictureFormat.MERMAID, as_json: Json = False) -> None:
    """Draw how far a graph run is: the state of every node."""
    with connect() as client:
        _print(client.runs.graph(run), picture, as_json=as_json)


def _print(graph: Graph, picture: PictureFormat, *, as_json: bool) -> None:
    if as_json:
        print_json(graph)
    elif picture is PictureFormat.TABLE:
        _print_nodes(graph)
    else:
        print(clean(graph.dot if picture is PictureFormat.DOT else graph.mermaid), end="")


def _print_nodes(graph: Graph) -> None:
    print_table(
        ("node", "kind", "status", "visits", "items", "error"),
        [
            (
                node.key,
                node.kind,
                node.status,
                node.visit,
                f"{node.done}/{node.of}" if node.of is not None else None,
                node.error and node.error.get("code", "some items failed"),
            )
            for node in graph.nodes
        ],
        "No nodes.",
    )


def register(agents: typer.Typer, runs: typer.Typer) -> None:
    """Add the commands to their groups."""
    agents.command(
        "graph",
        epilog=examples(
            "harness agents graph pr-digest", "harness agents graph pr-digest -f dot | dot -Tsvg"
        ),
    )(of_agent)
    runs.command(
        "graph",
        epilog=examples("harness runs graph run_0190…", "harness runs graph run_0190… -f table"),
    )(of_run)
