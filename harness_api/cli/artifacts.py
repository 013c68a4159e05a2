"""`harness artifacts`: files that runs made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness_api.cli.options import Json, RunId, connect, examples, group
from harness_api.cli.output import print_json, print_table, say, size
from harness_common.core.errors import Invalid

app = group("List and fetch the files that runs made.")


@app.command("list")
def list_artifacts(run_id: RunId, as_json: Json = False) -> None:
    """List the artifacts of a run."""
    with connect() as client:
        found = list(client.runs.artifacts(run_id))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "name", "type", "size", "created"),
        [(a.id, a.name, a.media_type, size(a.size_bytes), a.created_at) for a in found],
        "This run has made no artifacts.",
    )


@app.command(
    epilog=examples("harness artifacts get ART -o chart.png", "harness artifacts get ART -o - | wc")
)
def get(
    artifact_id: Annotated[str, typer.Argument(metavar="ID", help="An artifact's id: art_…")],
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="A file, or - for stdout.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: Json = False,
) -> None:
    """Fetch an artifact into a file; by default one of its own name in this folder."""
    with connect() as client:
        artifact = client.artifacts.get(artifact_id)
        if output == "-":
            sys.stdout.flush()
            sys.stdout.buffer.write(client.artifacts.content(artifact_id))
            return
        # Its name comes from a tool: never a path.
        path = Path(output) if output else Path(Path(artifact.name).name or artifact.id)
        if path.is_dir():
            path /= Path(artifact.name).name or artifact.id
        if path.exists() and not force:
            raise Invalid(f"{path} exists; use --force or another -o", code="FILE_EXISTS")
        data = client.artifacts.content(artifact_id)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise Invalid(f"Cannot write {path}: {error.strerror}", code="USAGE") from error
    if as_json:
        print_json({"artifact": artifact, "path": str(path), "size_bytes": len(data)})
    else:
        say(f"{size(len(data))} of {artifact.media_type}:")
        print(path)
