"""The command `harness`: puts the groups of commands together and turns failures into exit codes.

0: it worked (and the run succeeded). 1: the run failed or was cancelled, or the server refused.
2: the command is wrong, or the server cannot be reached.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from harness_api.cli import (
    agents,
    approvals,
    artifacts,
    data,
    doctor,
    effects,
    egress,
    graphs,
    keys,
    mcp,
    memory,
    models,
    plugins,
    policy,
    processes,
    repairs,
    run_context,
    run_control,
    runs,
    schedules,
    secrets,
    sessions,
    skills,
    tenant,
    throttles,
    tools,
    webhooks,
)
from harness_api.cli.options import examples
from harness_api.cli.output import clean, error_document
from harness_common.core.errors import HarnessError

REFUSED = 1
UNUSABLE = 2
INTERRUPTED = 130

app = typer.Typer(
    name="harness",
    help="Run AI agents step by step: durable, stoppable, watchable and replayable.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog=examples(
        "harness dev",
        "harness agents apply analyst.json",
        "harness runs submit analyst 'How many rows are there?' --follow",
        "harness runs show RUN",
    )
    + "\n\nExit codes: 0 done, 1 the run did not succeed or the server refused, 2 wrong usage or "
    "no server.",
)
for register in (
    processes.register,
    doctor.register,
    tenant.register,
    throttles.register,
    plugins.register,
):
    register(app)
run_control.register(runs.app)
run_context.register(runs.app)
graphs.register(agents.app, runs.app)
tenant.app.add_typer(secrets.encryption, name="encryption")
tenant.app.add_typer(data.retention, name="retention")
data.register(app, runs.app)
for name, commands in {
    "runs": runs.app,
    "approvals": approvals.app,
    "effects": effects.app,
    "repairs": repairs.app,
    "policy": policy.app,
    "agents": agents.app,
    "skills": skills.app,
    "tools": tools.app,
    "models": models.app,
    "egress": egress.app,
    "webhooks": webhooks.app,
    "sessions": sessions.app,
    "schedules": schedules.app,
    "mcp": mcp.app,
    "memory": memory.app,
    "artifacts": artifacts.app,
    "erase": data.erase,
    "keys": keys.app,
    "secrets": secrets.app,
    "tenant": tenant.app,
    "platform": tenant.platform,
}.items():
    app.add_typer(commands, name=name)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"harness {version('harness')}")
        raise typer.Exit


@app.callback()
def _options(
    url: Annotated[
        str | None,
        typer.Option("--url", help="The API. Default: HARNESS_API_URL, else a `harness dev`."),
    ] = None,
    _asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    if url is not None:
        os.environ["HARNESS_API_URL"] = url


def run(argv: list[str]) -> int:
    """Run one command line; return its exit code."""
    try:
        app(args=argv, prog_name="harness")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else _exit_text(end.code)
    except HarnessError as error:
        _report(error, as_json="--json" in argv)
        return _code_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ValueError as error:
        return _settings_failure(error)
    return 0


def main() -> None:
    """Start here: the entry point `harness`."""
    sys.exit(run(sys.argv[1:]))


def _exit_text(code: str | None) -> int:
    if code is None:
        return 0
    print(f"error: {code}", file=sys.stderr)
    return UNUSABLE


def _code_of(error: HarnessError) -> int:
    from harness_api.client.errors import ApiError
    from harness_common.core.errors import Invalid, Permanent, Transient

    if isinstance(error, ApiError):
        return REFUSED
    return UNUSABLE if isinstance(error, Invalid | Transient | Permanent) else REFUSED


def _report(error: HarnessError, *, as_json: bool) -> None:
    more = {name: value for name, value in error.detail.items() if value is not None}
    problem = getattr(error, "problem", {})
    if as_json:
        known = {k: v for k, v in problem.items() if k in {"field", "value", "limit", "errors"}}
        document = error_document(error.error_code, error.message, **more, **known)
        print(json.dumps(document, ensure_ascii=False, default=str), file=sys.stderr)
        return
    where = [error.error_code]
    if more.get("request_id"):
        where.append(f"request {more['request_id']}")
    print(f"error: {clean(error.message)} [{', '.join(where)}]", file=sys.stderr)
    for finding in problem.get("errors") or []:
        if finding.get("message") != error.message:
            print(f"  {clean(str(finding.get('message')))}", file=sys.stderr)
    subject = {"UNAUTHENTICATED": "key", "NOT_FOUND": problem.get("field")}.get(error.error_code)
    if hint := _HINTS.get(subject or ""):
        print(f"hint: {hint}", file=sys.stderr)


_HINTS = {
    "key": "set HARNESS_API_KEY; `harness dev` keeps its admin key in <data folder>/admin.key",
    "run_id": "`harness runs list` shows the runs of your tenant",
    "session_id": "`harness sessions list` shows the sessions of your tenant",
    "schedule": "`harness schedules list` shows the schedules of your tenant",
    "approval_id": "`harness approvals list` shows what waits for approval",
    "server": "`harness mcp list` shows the MCP servers of your tenant",
    "memory_id": "`harness memory list` shows what is remembered",
    "erasure_id": "`harness erase list` shows the erasures of your tenant",
    "key_id": "`harness keys list` shows the keys of your tenant",
}


def _settings_failure(error: ValueError) -> int:
    """Report settings that are wrong, by their variable and without their value."""
    from pydantic import ValidationError

    from harness_api.cli.doctor import settings_findings

    if not isinstance(error, ValidationError) or error.title != "Settings":
        raise error
    for line in settings_findings(error):
        print(f"error: {line} [SETTINGS]", file=sys.stderr)
    return UNUSABLE
