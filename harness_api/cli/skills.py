"""`harness skills`: how some kind of work is done, from files."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness_api.cli.agents import read_agent_file
from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import clean, clock, print_json, print_pairs, print_table, say, short
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client import Skill

app = group("Skills: prompt, knowledge, tools and flow of a kind of work, in versions.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a skill.")]
Version = Annotated[int | None, typer.Option("--version", min=1, help="Default: the newest.")]


@app.command(
    epilog=examples(
        "harness skills apply audit.yaml", "harness skills apply --plugin acme --name audit"
    )
)
def apply(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A .yaml, .json or .toml file.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name, instead of the file's.")] = None,
    plugin: Annotated[
        str | None, typer.Option(help="Take the skill from this plugin, installed here.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a skill, or its next version; an unchanged definition changes nothing."""
    if (file is None) == (plugin is None):
        raise Invalid("give either a FILE or --plugin", code="USAGE", field="FILE")
    if plugin is not None:
        skill_name, spec = of_plugin(plugin, name)
    else:
        assert file is not None
        skill_name, spec = read_agent_file(file, name)
    with connect() as client:
        skill = client.skills.apply(skill_name, spec)
    if as_json:
        print_json(skill)
        return
    print(f"{skill.name} is at version {skill.version} ({short(skill.digest, 13)})")
    for warning in skill.warnings:
        say(f"warning: {warning}")


def of_plugin(plugin: str, name: str | None) -> tuple[str, dict[str, Any]]:
    """Read a skill that an installed plugin offers; raises `Invalid`."""
    from harness_common.plugins import discover
    from harness_common.settings import settings

    found = next((p for p in discover(settings().plugins) if p.name == plugin), None)
    if found is None or found.plugin is None:
        why = found.problem if found else "it is not installed here"
        raise Invalid(f"no plugin {plugin!r}: {why}", code="USAGE", field="--plugin")
    offered = found.plugin.skills
    if name is None and len(offered) == 1:
        name = next(iter(offered))
    if name is None or name not in offered:
        raise Invalid(
            f"say with --name which skill of {plugin}: {', '.join(offered) or 'it has none'}",
            code="USAGE",
            field="--name",
        )
    return name, offered[name].model_dump(mode="json", exclude_defaults=True)


@app.command("list")
def list_skills(limit: Limit = 50, as_json: Json = False) -> None:
    """List the newest version of each skill."""
    with connect() as client:
        found = list(client.skills.list(limit))
    if as_json:
        print_json({"data": found})
    else:
        _table(found, "No skills. Add one with `harness skills apply FILE`.")


@app.command()
def versions(name: Name, limit: Limit = 50, as_json: Json = False) -> None:
    """List the versions of a skill, newest first."""
    with connect() as client:
        found = list(client.skills.versions(name, limit))
    if as_json:
        print_json({"data": found})
    else:
        _table(found, "No versions.")


def _table(found: list[Skill], empty: str) -> None:
    print_table(
        ("name", "version", "description", "tools", "documents", "changed", "by"),
        [
            (
                s.name, s.version, short(str(s.spec.get("description")), 50), s.spec.get("tools"),
                len(s.spec.get("knowledge", ())), s.created_at, s.created_by,
            )
            for s in found
        ],
        empty,
    )  # fmt: skip


@app.command()
def show(name: Name, version: Version = None, as_json: Json = False) -> None:
    """Show a version of a skill."""
    with connect() as client:
        skill = client.skills.get(name, version)
    if as_json:
        print_json(skill)
        return
    print_pairs({"skill": f"{skill.name} v{skill.version}", "id": skill.id, "digest": skill.digest})
    print(f"made {clock(skill.created_at)} by {skill.created_by}\n")
    print(clean(_yaml(skill)).rstrip("\n"))


@app.command(epilog=examples("harness skills diff audit", "harness skills diff audit 1 3"))
def diff(
    name: Name,
    old: Annotated[int | None, typer.Argument(min=0, help="Default: the one before.")] = None,
    new: Annotated[int | None, typer.Argument(min=1, help="Default: the newest.")] = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two versions."""
    with connect() as client:
        after = client.skills.get(name, new)
        number = after.version - 1 if old is None else old
        before = client.skills.get(name, number) if number > 0 else None
    lines = list(
        difflib.unified_diff(
            _yaml(before).splitlines() if before else [],
            _yaml(after).splitlines(),
            f"{name} version {number}",
            f"{name} version {after.version}",
            lineterm="",
        )
    )
    if as_json:
        print_json({"old": number, "new": after.version, "diff": lines})
    else:
        print("\n".join(map(clean, lines)) or "No difference.")


def _yaml(skill: Skill) -> str:
    """Write a definition as a file that `apply` takes, without what it does not use."""
    import yaml

    spec = {k: v for k, v in skill.spec.items() if v not in (None, [], "")}
    spec["knowledge"] = [
        {k: v for k, v in one.items() if v is not None} for one in spec.get("knowledge", ())
    ]
    whole = {"name": skill.name, **{k: v for k, v in spec.items() if v}}
    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=100)
