"""`harness doctor`: is everything there and reachable?"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer

from harness_api.cli.options import Json, examples
from harness_api.cli.output import clean, print_json
from harness_api.cli.process_log import use_colour

if TYPE_CHECKING:
    from pydantic import ValidationError

    from harness_api.cli.finding import Finding

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=examples("harness doctor", "harness doctor --json | jq .ok"))(doctor)


def doctor(as_json: Json = False) -> None:
    """Check this machine and what Harness needs; exit code 1 if something fails."""
    from harness_api.cli.finding import State

    found: list[Finding] = []
    for finding in _findings():
        found.append(finding)
        if not as_json:
            _print(finding)
    failed = sum(f.state is State.FAIL for f in found)
    if as_json:
        print_json({"ok": failed == 0, "checks": [_plain(f) for f in found]})
    else:
        print(_summary(found, failed))
    if failed:
        raise typer.Exit(1)


def _findings() -> Iterator[Finding]:
    """Check the settings, and with them all else."""
    from pydantic import ValidationError

    from harness_api.cli.checks import run_checks
    from harness_api.cli.finding import Finding, State
    from harness_common.settings import Settings

    try:
        config = Settings()
    except ValidationError as error:
        text = "; ".join(settings_findings(error))
        yield Finding("settings", State.FAIL, text, "Correct or unset these variables.")
        return
    yield Finding("settings", State.OK, "readable")
    yield from run_checks(config)


def settings_findings(error: ValidationError) -> list[str]:
    """Write each wrong setting as a line, by its variable and without its value."""
    return [
        f"HARNESS_{'__'.join(str(p) for p in item['loc']).upper()}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False)
    ]


def _plain(finding: Finding) -> dict[str, str]:
    return {
        "name": finding.name,
        "state": str(finding.state),
        "text": finding.text,
        "advice": "" if finding.state == "ok" else finding.advice,
    }


def _print(finding: Finding) -> None:
    label = f"{finding.state:<4}"
    if use_colour(sys.stdout):
        label = f"\033[{_COLOURS[finding.state]}m{label}\033[0m"
    print(f"{label}  {finding.name:<14} {clean(finding.text, lines=False)}", flush=True)
    if finding.advice and finding.state != "ok":
        print(f"{'':<21}→ {finding.advice}", flush=True)


def _summary(found: Sequence[Finding], failed: int) -> str:
    warned = sum(f.state == "warn" for f in found)
    if failed:
        return f"\n{failed} failed, {warned} to look at."
    return f"\nAll is well, {warned} to look at." if warned else "\nAll is well."
