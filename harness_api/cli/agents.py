"""`harness agents`: definitions of agents, from files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from harness_api.cli.files import read_object
from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import clean, clock, print_json, print_pairs, print_table, say, short
from harness_common.core.errors import Invalid

app = group("Define agents and look at them.")


def read_agent_file(path: Path, name: str | None = None) -> tuple[str, dict[str, Any]]:
    """Read a definition from a .json, .toml or .yaml file; raises `Invalid`.

    Either `{"name": …, "spec": {…}}`, or the fields of the spec with `name` among them.
    Without a name the file's own is taken.
    """
    found = read_object(path)
    own_name = found.pop("name", None)
    spec = found.pop("spec", None)
    if spec is not None and (found or not isinstance(spec, dict)):
        raise Invalid(f"{path}: beside `spec` (an object) only `name` may stand", code="USAGE")
    return name or own_name or path.stem, found if spec is None else spec


@app.command(
    epilog=examples("harness agents apply analyst.json", "harness agents apply a.toml --name b")
)
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .json, .toml or .yaml file.")],
    name: Annotated[str | None, typer.Option(help="Its name, instead of the file's.")] = None,
    as_json: Json = False,
) -> None:
    """Create an agent, or its next version; an unchanged definition changes nothing."""
    agent_name, spec = read_agent_file(file, name)
    with connect() as client:
        agent = client.agents.apply(agent_name, spec)
    if as_json:
        print_json(agent)
        return
    print(f"{agent.name} is at version {agent.version} ({short(agent.digest, 13)})")
    for warning in agent.warnings:
        say(f"warning: {warning}")


@app.command("list")
def list_agents(limit: Limit = 50, as_json: Json = False) -> None:
    """List the newest version of each agent."""
    with connect() as client:
        found = list(client.agents.list(limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("name", "version", "model", "tools", "changed", "by"),
        [
            (
                a.name,
                a.version,
                a.spec.get("model"),
                a.spec.get("tools"),
                a.created_at,
                a.created_by,
            )
            for a in found
        ],
        "No agents. Add one with `harness agents apply FILE`.",
    )


@app.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    version: Annotated[int | None, typer.Option(min=1, help="Default: the newest.")] = None,
    as_json: Json = False,
) -> None:
    """Show a version of an agent."""
    with connect() as client:
        agent = client.agents.get(name, version)
    if as_json:
        print_json(agent)
        return
    print_pairs({"agent": f"{agent.name} v{agent.version}", "id": agent.id, "digest": agent.digest})
    print(f"made {clock(agent.created_at)} by {agent.created_by}\n")
    print(clean(json.dumps(agent.spec, indent=2, ensure_ascii=False)))


@app.command()
def versions(
    name: Annotated[str, typer.Argument(metavar="NAME")], limit: Limit = 20, as_json: Json = False
) -> None:
    """List the versions of an agent, newest first."""
    with connect() as client:
        found = list(client.agents.versions(name, limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("version", "model", "made", "by", "digest"),
        [
            (a.version, a.spec.get("model"), a.created_at, a.created_by, short(a.digest, 13))
            for a in found
        ],
        "No versions.",
    )


@app.command(epilog=examples("harness agents diff analyst", "harness agents diff analyst 2 5"))
def diff(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    from_version: Annotated[
        int | None, typer.Argument(metavar="[FROM]", min=1, help="Default: the one before TO.")
    ] = None,
    to_version: Annotated[
        int | None, typer.Argument(metavar="[TO]", min=1, help="Default: the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what changed between two versions of an agent."""
    with connect() as client:
        found = client.agents.diff(name, from_version, to_version)
    if as_json:
        print_json(found)
        return
    print(f"{found.name} v{found.from_version} → v{found.to_version}")
    for change in found.changes:
        if change.lines is not None:
            print(f"{change.path}:")
            for line in change.lines:
                print(f"  {clean(line)}")
            continue
        sides = (json.dumps(side, ensure_ascii=False) for side in (change.before, change.after))
        print(clean(f"{change.path}: {' → '.join(sides)}"))
    if not found.changes:
        print("Nothing differs.")
