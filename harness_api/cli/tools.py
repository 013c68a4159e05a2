"""`harness tools`: what agents can do: tools that are data, from files and OpenAPI documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from harness_api.cli.files import read_object
from harness_api.cli.options import Json, Limit, connect, examples, group, pairs
from harness_api.cli.output import clean, clock, print_json, print_pairs, print_table, say, short
from harness_api.cli.tool_breakers import breakers, reset_breaker
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client import Run, Tool
    from harness_api.client.types import ToolCall

app = group("Give agents tools: list, add, change, import, try and take them away.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A tool's name.")]
_CALLER: Final = "tools-call"
"""The agent by which `call` makes its runs."""


@app.command("list")
def list_tools(as_json: Json = False) -> None:
    """List the tenant's own tools and those that workers have."""
    with connect() as client:
        found = client.tools.list()
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("name", "version", "effect", "risk", "tags", "sandbox", "timeout", "from", "status"),
        [
            (
                t.name, t.version, t.effect, t.risk, t.permission_tags, t.sandbox,
                f"{t.timeout_s:g} s", "tenant" if t.source == "tenant" else t.queues, t.status,
            )
            for t in found
        ],
        "No tools: no worker is alive, and the tenant has none. Add one with "
        "`harness tools add FILE`.",
    )  # fmt: skip


@app.command(
    epilog=examples("harness tools show weather", "harness tools show weather --version 2")
)
def show(
    name: Name,
    version: Annotated[
        int | None, typer.Option(min=1, help="Default: the one that counts.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a tool: what the model is told, and the request it becomes."""
    with connect() as client:
        tool = client.tools.get(name, version)
    if as_json:
        print_json(tool)
        return
    print_pairs(
        {
            "tool": f"{tool.name} v{tool.version}",
            "status": tool.status,
            "from": "the tenant" if tool.source == "tenant" else f"workers of {tool.queues}",
            "effect": tool.effect,
            "risk": tool.risk,
            "tags": tool.permission_tags,
            "timeout": f"{tool.timeout_s:g} s",
            "cost": f"${tool.cost_estimate_usd:g}" if tool.cost_estimate_usd else None,
            "sandbox": tool.sandbox,
            "fallback": tool.fallback,
            "digest": tool.digest,
            "made": f"{clock(tool.created_at)} by {tool.created_by or 'a worker'}",
        }
    )
    print(f"\n{clean(tool.description)}\n")
    print(clean(json.dumps(tool.input_schema, indent=2, ensure_ascii=False)))
    if tool.definition is not None:
        print(clean(json.dumps({"http": tool.definition["http"]}, indent=2, ensure_ascii=False)))


@app.command()
def versions(name: Name, limit: Limit = 20, as_json: Json = False) -> None:
    """List the versions of a tenant's tool, newest first, also of a removed one."""
    with connect() as client:
        found = list(client.tools.versions(name, limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("version", "made", "by", "effect", "digest"),
        [(t.version, t.created_at, t.created_by, t.effect, short(t.digest, 13)) for t in found],
        "No versions.",
    )


@app.command(epilog=examples("harness tools add weather.json", "harness tools add weather.yaml"))
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .json, .toml or .yaml file.")],
    as_json: Json = False,
) -> None:
    """Add a tool, or its next version; it counts from the next step of every run."""
    definition = read_object(file)
    with connect() as client:
        tool = client.tools.put(definition)
    _tell(tool, as_json)


@app.command()
def remove(name: Name, as_json: Json = False) -> None:
    """Take a tool away; its versions can still be read."""
    with connect() as client:
        client.tools.remove(name)
    if as_json:
        print_json({"tool": name, "removed": True})
    else:
        print(f"{name} is removed")


@app.command()
def enable(name: Name, as_json: Json = False) -> None:
    """Let a tool be used again, from the next step of every run."""
    with connect() as client:
        _tell(client.tools.enable(name), as_json)


@app.command()
def disable(name: Name, as_json: Json = False) -> None:
    """Let every call of a tool be refused, from the next step of every run."""
    with connect() as client:
        _tell(client.tools.disable(name), as_json)


@app.command(
    "import",
    epilog=examples(
        "harness tools import petstore.yaml --dry-run",
        "harness tools import petstore.json --only GET:/pets --only addPet --prefix p_ "
        "--header 'Authorization=Bearer secret://petstore'",
    )
    + "\n\nThe exit code is 0 if at least one tool was made.",
)
def import_tools(  # noqa: PLR0917 - typer wants it so
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An OpenAPI 3.0 or 3.1 document: .json or .yaml.")
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(help="GET:/path or an operationId; repeatable, or with commas."),
    ] = None,
    server: Annotated[str | None, typer.Option(help="Instead of the document's own.")] = None,
    prefix: Annotated[str, typer.Option(help="Put before every name.")] = "",
    header: Annotated[
        list[str] | None, typer.Option(help="name=value with each request; repeatable.")
    ] = None,
    query: Annotated[
        list[str] | None, typer.Option(help="name=value with each request; repeatable.")
    ] = None,
    effect: Annotated[
        list[str] | None,
        typer.Option(help="OPERATION=read|idempotent|write, where the method says it wrongly."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be made.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make tools of the operations of an OpenAPI document."""
    from harness_common.contracts.openapi_tools import Wanted, read_openapi

    wanted = Wanted(
        only=tuple(name.strip() for text in only or [] for name in text.split(",")),
        server=server,
        prefix=prefix,
        headers=pairs(header or [], "--header"),
        query=pairs(query or [], "--query"),
        effects=pairs(effect or [], "--effect"),
    )
    found = read_openapi(read_object(file), wanted)
    made: list[dict[str, Any]] = []
    for item in found.tools:
        row: dict[str, Any] = {
            "operation": item.operation,
            "name": item.definition.name,
            "version": None,
            "effect": item.definition.effect_class.value,
            "warnings": list(item.warnings),
        }
        if not dry_run:
            with connect() as client:
                row["version"] = client.tools.put(item.definition.model_dump(mode="json")).version
        made.append(row)
    skipped = [{"operation": s.operation, "reason": s.reason} for s in found.skipped]
    if as_json:
        print_json({"tools": made, "skipped": skipped, "dry_run": dry_run})
    else:
        _print_import(made, skipped, dry_run)
    if not made:
        raise typer.Exit(1)


def _print_import(made: list[dict[str, Any]], skipped: list[dict[str, Any]], dry_run: bool) -> None:
    columns = ("operation", "name", "version", "effect")
    rows = [tuple(row[c] for c in columns) for row in made]
    print_table(columns, rows, "No operation can be made a tool.")
    for row in made:
        for warning in row["warnings"]:
            say(f"warning: {row['operation']}: {warning}")
    for row in skipped:
        say(f"skipped: {row['operation']}: {row['reason']}")
    if dry_run:
        say("Nothing was made: leave --dry-run out to make them.")


@app.command(
    epilog=examples(
        'harness tools call weather \'{"city": "Bern"}\'', "harness tools call calculate - < a.json"
    )
    + "\n\nIt is a run like any other: policy, approvals and the ledger apply. "
    "The exit code is 0 if the call succeeded, else 1."
)
def call(
    name: Name,
    arguments: Annotated[
        str, typer.Argument(metavar="JSON", help="An object; - reads standard input.")
    ] = "{}",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for its end.")] = 60.0,
    queue: Annotated[str | None, typer.Option(help="The queue of the worker to use.")] = None,
    as_json: Json = False,
) -> None:
    """Call a tool once, by a run whose model is a script, and show what came of it."""
    given = _arguments(arguments)
    spec: dict[str, Any] = {
        "description": "Made by `harness tools call`.",
        "model": "scripted/tools-call",
        "tools": [name],
        "model_options": {"script": [{"tools": [{"name": name, "input": given}]}, {"text": "ok"}]},
    }
    if queue is not None:
        spec["queue"] = queue
    with connect() as client:
        agent = client.agents.apply(_CALLER, spec)
        for warning in agent.warnings:
            say(f"warning: {warning}")
        run = client.runs.create(_CALLER, f"call {name}", agent_version=agent.version)
        run = client.runs.wait(run.id, timeout)
        found = next(iter(client.runs.tool_calls(run.id)), None)
    _tell_call(run, found, as_json)


def _arguments(text: str) -> dict[str, Any]:
    if text == "-":
        import sys

        text = sys.stdin.read()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"the arguments are not JSON: {error}", code="USAGE", field="JSON") from error
    if not isinstance(found, dict):
        raise Invalid("the arguments are no JSON object", code="USAGE", field="JSON")
    return found


def _tell_call(run: Run, found: ToolCall | None, as_json: bool) -> None:
    succeeded = found is not None and found.status == "succeeded"
    if as_json:
        print_json({"run": run, "call": found})
    elif found is None or found.status not in {"succeeded", "failed", "rejected", "unknown"}:
        error = f": {run.error}" if run.error else ""
        say(f"{run.id} is {run.status}{error}; see `harness runs show {run.id}`")
    else:
        print(clean(found.result or ""))
        say(f"{found.status} in {found.ms or 0:.0f} ms; {run.id}")
    if not succeeded:
        raise typer.Exit(1)


def _tell(tool: Tool, as_json: bool) -> None:
    if as_json:
        print_json(tool)
    else:
        print(f"{tool.name} is {tool.status} at version {tool.version} ({short(tool.digest, 13)})")


app.command(epilog=examples("harness tools breakers"))(breakers)
app.command("reset-breaker", epilog=examples("harness tools reset-breaker http_get"))(reset_breaker)
