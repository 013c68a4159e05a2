"""`harness plugins`: what installed packages bring to the workers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from harness_api.cli.options import Json, connect, examples
from harness_api.cli.output import print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=examples("harness plugins", "harness plugins --here --json"))(plugins)


def plugins(
    here: Annotated[
        bool, typer.Option("--here", help="Those installed on this machine; no server is asked.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the plugins that live workers have loaded, and the broken ones with the reason."""
    found = _installed() if here else _at_workers()
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("plugin", "package", "version", "brings", "workers", "problem"),
        [
            (
                p["name"], p["package"], p["version"],
                "; ".join(f"{kind}: {', '.join(names)}" for kind, names in p["parts"].items()),
                p.get("workers"), p["problem"],
            )
            for p in found
        ],
        "No plugins. See docs/plugins.md for how to write one.",
    )  # fmt: skip


def _at_workers() -> list[dict[str, Any]]:
    """Join what live workers say: one entry for each different answer."""
    found: list[dict[str, Any]] = []
    with connect() as client:
        for worker in client.workers.list():
            for told in worker.plugins if worker.died_at is None else ():
                same = next((p for p in found if told.items() <= p.items()), None)
                if same is None:
                    found.append(same := {**told, "workers": 0})
                same["workers"] += 1
    return sorted(found, key=lambda p: str(p["name"]))


def _installed() -> list[dict[str, Any]]:
    from harness_common.plugins import discover
    from harness_common.settings import settings

    return [one.told() for one in discover(settings().plugins)]
