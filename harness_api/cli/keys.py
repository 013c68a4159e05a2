"""`harness keys`: API keys of the tenant."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from harness_api.client.types import ApiKey, NewApiKey

app = group("Make, list, revoke and rotate API keys.")

KeyId = Annotated[str, typer.Argument(metavar="KEY", help="A key's id: key_…")]


@app.command(
    epilog=examples(
        "harness keys create ci --role operator --days 90",
        "harness keys create dashboard --role viewer --scope runs:read",
    )
)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    role: Annotated[str, typer.Option(help="viewer, operator, approver or admin.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="Narrow it, for example to runs:read; repeatable.")
    ] = None,
    days: Annotated[float | None, typer.Option(min=0, help="Days until it expires.")] = None,
    as_json: Json = False,
) -> None:
    """Make a key. Its secret is printed now and never again."""
    expires_at = None if days is None else datetime.now(UTC) + timedelta(days=days)
    with connect() as client:
        key = client.keys.create(name, role, scopes=scope or (), expires_at=expires_at)
    _print_new(key, as_json)


@app.command("list")
def list_keys(limit: Limit = 50, as_json: Json = False) -> None:
    """List keys, newest first, dead ones included."""
    with connect() as client:
        found = list(client.keys.list(limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "name", "role", "scopes", "state", "created", "expires", "last used"),
        [
            (k.id, k.name, k.role, k.scopes, _state(k), k.created_at, k.expires_at, k.last_used_at)
            for k in found
        ],
        "No keys.",
    )


@app.command()
def revoke(key_id: KeyId, as_json: Json = False) -> None:
    """Revoke a key; nobody can use it within seconds."""
    with connect() as client:
        client.keys.revoke(key_id)
    if as_json:
        print_json({"id": key_id, "revoked": True})
    else:
        print(f"{key_id} is revoked")


@app.command(epilog=examples("harness keys rotate KEY --overlap-s 3600"))
def rotate(
    key_id: KeyId,
    overlap_s: Annotated[
        int | None, typer.Option(min=0, help="Seconds the old key lives on. Default: a day.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a successor of a key, with the same rights."""
    with connect() as client:
        key = client.keys.rotate(key_id, overlap_s)
    _print_new(key, as_json)


def _print_new(key: NewApiKey, as_json: bool) -> None:
    if as_json:
        print_json(key)
        return
    say(f"{key.id} ({key.role}). Keep this secret; it is shown only now:")
    sys.stdout.write(key.secret + "\n")


def _state(key: ApiKey) -> str:
    if key.revoked_at is not None:
        return "revoked"
    if key.expires_at is not None and key.expires_at <= datetime.now(UTC):
        return "expired"
    return "live"
