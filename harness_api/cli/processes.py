"""`harness dev`, and the single processes: `api`, `worker`, `scheduler`, `flower`,
`migrate`, `make-tenant`.

Each of those becomes `python -m …` by exec, so that signals and exit codes are its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

from harness_api.cli.options import Json, examples
from harness_common.logins import Login


class Phase(StrEnum):
    """Which part of an upgrade."""

    PRE = "pre"
    POST = "post"
    ALL = "all"


Tools = Annotated[list[str] | None, typer.Option(help="A module with your tools. May be repeated.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    add = app.command
    add(
        epilog=examples(
            "harness dev",
            "harness dev --tools my_company.tools",
            "HARNESS_API__PORT=8800 harness dev --no-flower",
        )
    )(dev)
    add(epilog=examples("harness api --port 8800"))(api)
    add(
        epilog=examples(
            "harness worker -Q steps.default --concurrency 200",
            "harness worker --tools my_company.tools --processes 4",
        )
    )(worker)
    add()(scheduler)
    add(epilog=examples("harness flower --port 5555"))(flower)
    add(epilog=examples("harness migrate --bootstrap", "harness migrate --phase pre"))(migrate)
    add("make-tenant", epilog=examples("harness make-tenant acme"))(make_tenant)


def dev(
    flower_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Where Flower listens.")
    ] = 5555,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Start no Flower.")] = False,
    processes: Annotated[
        int | None, typer.Option(min=1, max=64, help="Worker processes. Default: settings.")
    ] = None,
    tools: Tools = None,
) -> None:
    """Start everything on this machine, databases included, until Ctrl-C."""
    from harness_api.cli.dev import DevOptions, run_dev
    from harness_common.settings import settings

    options = DevOptions.from_settings(
        settings(),
        flower_port=None if no_flower else flower_port,
        processes=processes,
        tools=tools or (),
    )
    raise typer.Exit(run_dev(options))


def api(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The port.")] = None,
) -> None:
    """Serve the HTTP API."""
    if host is not None:
        os.environ["HARNESS_API__HOST"] = host
    if port is not None:
        os.environ["HARNESS_API__PORT"] = str(port)
    _need_services("api")
    _become("harness_api")


def worker(
    queues: Annotated[
        str | None, typer.Option("--queues", "-Q", help="Queues to serve, separated by commas.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Steps held at once by each process.")
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, max=256, help="Processes.")] = None,
    tools: Tools = None,
) -> None:
    """Work on steps."""
    _need_services("system")
    given = {"--queues": queues, "--concurrency": concurrency, "--processes": processes}
    _become("harness_worker", *worker_arguments(given, tools or []))


def worker_arguments(given: Mapping[str, object], tools: Sequence[str]) -> list[str]:
    """Return what `python -m harness_worker` is told; what was not given is left to it."""
    argv = [str(p) for name, v in given.items() if v is not None for p in (name, v)]
    return argv + [part for module in tools for part in ("--tools", module)]


def scheduler() -> None:
    """Run a scheduler; of several one leads, the others stand by."""
    _need_services("system")
    _become("harness_worker.scheduler")


def flower(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The port.")] = None,
) -> None:
    """Run Flower, which the API shows at /flower when HARNESS_FLOWER_URL names it."""
    from harness_common.settings import settings

    if host is not None:
        os.environ["HARNESS_FLOWER__HOST"] = host
    if port is not None:
        os.environ["HARNESS_FLOWER__PORT"] = str(port)
    if settings().broker_url is None:
        settings().require_redis_url()
    _become("harness_common.flower")


def migrate(
    bootstrap: Annotated[
        bool,
        typer.Option("--bootstrap", help="Also make a first tenant and its admin key."),
    ] = False,
    phase: Annotated[
        Phase,
        typer.Option(
            help="pre: before the processes of a new version start, while the old ones run; post: "
            "when the last old one is gone; all: nothing runs, or it is the first time."
        ),
    ] = Phase.ALL,
) -> None:
    """Bring the database to the current schema. Safe to repeat."""
    import subprocess

    from harness_common.settings import settings

    settings().database_login("owner")
    argv = ["harness_common.store.migrate", "--phase", str(phase)]
    if not bootstrap:
        _become(*argv)
    for module in (argv, ["harness_common.store.bootstrap"]):
        code = subprocess.run([sys.executable, "-m", *module], check=False).returncode
        if code != 0:
            raise typer.Exit(1)


def make_tenant(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What people call it.")],
    as_json: Json = False,
) -> None:
    """Make another tenant and print its first admin key; run it where a scheduler could run."""
    from harness_api.cli.dev_file import read_dev_file
    from harness_common.settings import settings

    config = settings()
    if config.database_url is None and config.system_database_url is None:
        dev = read_dev_file(config.data_dir) or {}
        if url := dev.get("embedded_urls", {}).get("postgres"):
            os.environ["HARNESS_DATABASE_URL"] = url
        else:
            config.database_login("system")
    _become("harness_common.store.new_tenant", *(["--json"] if as_json else []), "--", name)


def _need_services(login: Login) -> None:
    from harness_common.settings import settings

    settings().database_login(login)
    settings().require_redis_url()


def _become(module: str, *argv: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # A module of ours in a fresh interpreter, no shell.
    os.execv(sys.executable, [sys.executable, "-m", module, *argv])  # noqa: S606
