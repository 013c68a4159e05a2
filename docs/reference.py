"""Write docs/api.md, docs/cli.md and docs/settings.md: what the code says of itself, for reading.

`make docs` runs it, and `--check` (tests/unit/test_docs.py) fails when a page is stale.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("HARNESS_REDIS_URL", "redis://127.0.0.1:6379/0")


import typer
from pydantic import BaseModel, SecretStr

from harness_api import reference
from harness_api.app import create_app
from harness_api.cli.main import app as cli
from harness_common.settings import Settings

HERE: Final = Path(__file__).parent
MADE: Final = "<!-- Written by docs/reference.py (`make docs`). Change the code, not this page. -->"


def api_page() -> str:
    """List the operations and the forms of their bodies."""
    app = create_app(Settings(database_url="postgresql://nobody@localhost/none"))
    parts = [
        "# API reference",
        MADE,
        "Every operation of the HTTP API. Keys go into `Authorization: Bearer hk_…`; the word "
        "after the path is the permission that a key needs. Every error is "
        "`application/problem+json` with a stable `code` and says what to do. Lists are pages: "
        "`limit` and `cursor` in, `data` and `next_cursor` out. A running API has the same at "
        "`/docs`, and the OpenAPI document at `/openapi.json`. In Python, use the "
        "[client](../README.md#from-python).",
    ]
    subjects = reference.operations(app)
    parts.append(" · ".join(f"[{s}](#{s.replace(' ', '-')})" for s in (*subjects, "forms")))
    for subject, found in subjects.items():
        parts.append(f"## {subject}")
        parts += [_operation(operation) for operation in found]
    parts.append("## forms")
    parts += [_schema(schema) for schema in reference.schemas(app.openapi())]
    return "\n\n".join(parts) + "\n"


def _operation(operation: reference.Operation) -> str:
    needs = f" · {operation.permission}" if operation.permission else ""
    lines = [f"**`{operation.method} {operation.path}`**{needs}  ", f"{_cell(operation.text)}", ""]
    for value in operation.parameters:
        kind = f"{value.place}, {_cell(value.type)}{', required' if value.required else ''}"
        lines.append(f"- `{value.name}` ({kind}) {_cell(value.note)}".rstrip())
    if operation.body:
        lines.append(f"- body: {_cell(operation.body)}")
    for status, form in operation.answers:
        lines.append(f"- {status}{': ' + _cell(form) if form else ''}")
    return "\n".join(lines)


def _schema(schema: reference.Schema) -> str:
    head = f"**{schema.name}** {_cell(schema.text)}".rstrip()
    if not schema.fields:
        return head
    rows = [head, "", "| field | type | |", "|---|---|---|"]
    for field in schema.fields:
        must = "" if not field.required else "required. "
        rows.append(f"| `{field.name}` | {_cell(field.type)} | {_cell(must + field.note)} |")
    return "\n".join(rows)


def cli_page() -> str:
    """List the commands with their arguments and options."""
    parts = [
        "# Command line",
        MADE,
        "`harness COMMAND --help` says the same. Most commands take `--json`. Exit codes: 0 done, "
        "1 the run did not succeed or the server refused, 2 wrong usage or no server. Commands "
        "speak to the API that `HARNESS_API_URL` names with the key in `HARNESS_API_KEY`, or to a "
        "`harness dev` of this folder.",
    ]
    parts += [_command(path, command) for path, command in commands()]
    return "\n\n".join(parts) + "\n"


def commands() -> Iterator[tuple[str, Any]]:
    """Give every command with its words, in order."""
    root = typer.main.get_command(cli)
    stack: list[tuple[str, Any]] = [("harness", root)]
    while stack:
        path, command = stack.pop(0)
        inner = getattr(command, "commands", None)
        if inner is None:
            yield path, command
            continue
        stack[:0] = [(f"{path} {name}", one) for name, one in inner.items() if not one.hidden]


def _command(path: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    words = " ".join(_argument(a) for a in arguments)
    lines = [f"**`{path}{' ' + words if words else ''}`**  ", reference.clean(command.help or "")]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    if options:
        lines.append("")
    for option in options:
        names = ", ".join(f"`{o}`" for o in option.opts)
        text = reference.clean(getattr(option, "help", "") or "")
        must = " (required)" if option.required else ""
        lines.append(f"- {names}{must} {_cell(text)}".rstrip())
    return "\n".join(lines)


def _argument(argument: Any) -> str:
    name = str(argument.metavar or argument.name).strip("[]{}").upper()
    name += "…" if argument.nargs == -1 else ""
    return name if argument.required else f"[{name}]"


def settings_page() -> str:
    """List the settings, their defaults and what they mean."""
    parts = [
        "# Settings",
        MADE,
        "Every setting is an environment variable; a name that does not exist is refused. Lists "
        "and tables are written as JSON.",
    ]
    texts = _texts()
    top = [n for n, f in Settings.model_fields.items() if not _is_group(f.annotation)]
    parts.append(_table("Settings", Settings, top, "HARNESS_", texts))
    for name, field in Settings.model_fields.items():
        group = field.annotation
        if _is_group(group):
            assert isinstance(group, type)
            parts.append(f"## {name}\n\n{reference.clean(group.__doc__ or '')}")
            parts.append(
                _table(
                    group.__name__,
                    group,
                    list(group.model_fields),
                    f"HARNESS_{name.upper()}__",
                    texts,
                )
            )
    return "\n\n".join(parts) + "\n"


def _is_group(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _table(
    owner: str,
    model: type[BaseModel],
    names: list[str],
    prefix: str,
    texts: dict[tuple[str, str], str],
) -> str:
    rows = ["| variable | default | |", "|---|---|---|"]
    for name in names:
        default = model.model_fields[name].get_default()
        shown = "" if default is None else f"`{_default(default)}`"
        text = texts.get((owner, name), "")
        rows.append(f"| `{prefix}{name.upper()}` | {shown} | {_cell(text)} |")
    return "\n".join(rows)


def _default(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(f'"{v}"' if isinstance(v, str) else str(v) for v in value) + "]"
    if isinstance(value, SecretStr):
        return "(secret)"
    return (
        {True: "true", False: "false"}.get(value, str(value))
        if isinstance(value, bool)
        else str(value)
    )


def _texts() -> dict[tuple[str, str], str]:
    """Read the strings that stand below the fields."""
    source = (HERE.parent / "harness_common" / "settings.py").read_text(encoding="utf-8")
    found: dict[tuple[str, str], str] = {}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for field, text in zip(node.body, node.body[1:], strict=False):
            match field, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[node.name, name] = reference.clean(words)
    return found


def _cell(text: str) -> str:
    """Write a text into a cell of a table, or a line of a list."""
    return text.replace("|", "\\|").replace("<", "&lt;")


PAGES: Final = {"api.md": api_page, "cli.md": cli_page, "settings.md": settings_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or with `--check` say which are stale."""
    if arguments not in ([], ["--check"]):
        print("usage: python docs/reference.py [--check]", file=sys.stderr)
        return 2
    stale = []
    for name, make in PAGES.items():
        page, path = make(), HERE / name
        if not arguments:
            path.write_text(page, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != page:
            stale.append(name)
    if stale:
        print(f"{', '.join(stale)}: stale. Run `make docs` and commit the result.", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
