"""`harness throttles`: which provider is throttled, until when, and who waits for it."""

from __future__ import annotations

import typer

from harness_api.cli.options import Json, connect
from harness_api.cli.output import print_json, print_table, short


def register(root: typer.Typer) -> None:
    """Add the command."""
    root.command()(throttles)


def throttles(as_json: Json = False) -> None:
    """List the rate limits of providers that hold runs back now."""
    with connect() as client:
        found = list(client.throttles.list())
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("provider", "model", "until", "pace", "next free", "waiting", "hits", "since", "reason"),
        [
            (
                t.provider, t.model, t.until, f"1 in {t.interval_s:.3g} s", t.next_at, t.waiting,
                t.hits, t.since, f"{t.code}: {short(t.reason, 60)}",
            )
            for t in found
        ],
        "Nothing is throttled.",
    )  # fmt: skip
