"""`harness secrets`: what tools may use and nobody may see. And `harness tenant encryption`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import print_json, print_pairs, print_table, say
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client.types import DataKeys, Encryption

app = group("Set, list and delete secrets, which tools use and nobody can read back.")
encryption = group("Encrypt what the tenant's runs store: messages, results, events, artifacts.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, `_`, `-` and `.`.")]


@app.command(
    "set",
    epilog=examples(
        "harness secrets set GITHUB_TOKEN",
        "pass show github | harness secrets set GITHUB_TOKEN",
        "harness secrets set TLS_KEY --from-file key.pem",
    ),
)
def set_secret(
    name: Name,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="Read the value from this file, as it is.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Set a secret, or replace its value. It is asked for, or read from standard input (without its
    last line break); never taken from the command line, which others can see.
    """
    value = _value(name, from_file)
    with connect() as client:
        secret = client.secrets.set(name, value)
    if as_json:
        print_json(secret)
    else:
        print(f"{secret.name} is set (version {secret.version})")


def _value(name: str, from_file: Path | None) -> str:
    try:
        if from_file is not None:
            return from_file.read_bytes().decode()
        if sys.stdin.isatty():
            return str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
        text = sys.stdin.buffer.read().decode()
    except OSError as error:
        raise Invalid(
            f"cannot read {from_file}: {error.strerror}", code="USAGE", field="--from-file"
        ) from None
    except UnicodeDecodeError:
        raise Invalid(
            "the value is not UTF-8 text; set it as base64 and let the tool decode it",
            code="USAGE",
            field="value",
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


@app.command("list")
def list_secrets(limit: Limit = 50, as_json: Json = False) -> None:
    """List secrets: names, versions, who set them and when, and when they were last used."""
    with connect() as client:
        found = list(client.secrets.list(limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("name", "version", "set", "by", "last used"),
        [(s.name, s.version, s.set_at, s.set_by, s.last_used_at) for s in found],
        "No secrets. Set one with `harness secrets set NAME`.",
    )


@app.command()
def delete(name: Name, as_json: Json = False) -> None:
    """Delete a secret for good; no tool gets it from 15 seconds later on."""
    with connect() as client:
        client.secrets.delete(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print(f"{name} is deleted")


@app.command(epilog=examples("harness secrets keys"))
def keys(as_json: Json = False) -> None:
    """Show which key-encryption keys wrap how many data keys of all tenants (operator)."""
    with connect() as client:
        _print_keys(client.secrets.keys(), as_json)


@app.command(epilog=examples("harness secrets rewrap"))
def rewrap(
    batch: Annotated[int, typer.Option(min=1, max=1000, help="Data keys a request.")] = 100,
    as_json: Json = False,
) -> None:
    """Wrap the data keys of all tenants by the current key-encryption key (operator). Break it off
    and start it again as you like.
    """
    done = 0
    with connect() as client:
        while True:
            found = client.secrets.rewrap(batch)
            done += found.rewrapped
            if not as_json:
                say(f"{done} rewrapped, {found.left} left")
            if found.left == 0 or found.rewrapped == 0:
                break
    if as_json:
        print_json({**found.model_dump(mode="json"), "rewrapped": done})
    else:
        _print_keys(found, as_json=False)
    if found.left or found.out_of_reach:
        raise typer.Exit(1)


def _print_keys(found: DataKeys, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    rows = []
    for kek in dict.fromkeys([*found.known, *found.data_keys]):
        state = "current" if kek == found.current else "old"
        rows.append((kek, state if kek in found.known else "MISSING", found.data_keys.get(kek, 0)))
    print_table(("kek", "state", "data keys"), rows, "No key-encryption key is set.")


@encryption.command("show")
def show_encryption(as_json: Json = False) -> None:
    """Show whether what is stored from now on is encrypted."""
    with connect() as client:
        _print_encryption(client.tenant.encryption(), as_json)


@encryption.command("on", epilog=examples("harness tenant encryption on"))
def encryption_on(
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Write with a fresh data key from now on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Encrypt what is stored from now on; what is there already stays as it is."""
    with connect() as client:
        _print_encryption(client.tenant.set_encryption(True, new_key=new_key), as_json)


@encryption.command("off")
def encryption_off(as_json: Json = False) -> None:
    """Store bodies plainly from now on; what is encrypted stays so, and readable."""
    with connect() as client:
        _print_encryption(client.tenant.set_encryption(False), as_json)


def _print_encryption(found: Encryption, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    key = found.data_key
    print_pairs(
        {
            "encryption": "on" if found.on else "off",
            "since": found.since,
            "data key": None if key is None else f"version {key.version}, wrapped by {key.kek}",
        }
    )
