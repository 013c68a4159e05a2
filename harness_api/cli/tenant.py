"""`harness tenant`, `harness workers` and `harness audit`: who we are, who works, who did what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import print_json, print_pairs, print_table

if TYPE_CHECKING:
    from harness_api.client.types import Tenant, Worker

app = group("Look at the tenant of the key and change its limits.")


def register(root: typer.Typer) -> None:
    """Add the commands that stand alone."""
    root.command()(workers)
    root.command()(audit)


@app.command()
def show(as_json: Json = False) -> None:
    """Show the tenant, its limits and what it has going."""
    with connect() as client:
        _print(client.tenant.get(), as_json)


@app.command(epilog=examples("harness tenant limits --max-running 50"))
def limits(
    max_running: Annotated[int, typer.Option(min=0, help="Runs that may go on at once.")],
    as_json: Json = False,
) -> None:
    """Change the tenant's limits. What runs already goes on."""
    with connect() as client:
        _print(client.tenant.set_limits(max_running=max_running), as_json)


def workers(as_json: Json = False) -> None:
    """List worker processes, those that died within the hour included."""
    with connect() as client:
        found = list(client.workers.list())
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("name", "host", "pid", "state", "held", "room", "queues", "seen"),
        [
            (w.name, w.host, w.pid, _state(w), w.held, w.concurrency, w.queues, w.seen_at)
            for w in found
        ],
        "No workers. Start some with `harness worker` or `harness dev`.",
    )


def audit(limit: Limit = 50, as_json: Json = False) -> None:
    """List who changed what, newest first."""
    with connect() as client:
        found = list(client.audit.list(limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("at", "actor", "action", "target", "request", "detail"),
        [(e.at, e.actor, e.action, e.target, e.request_id, e.detail or None) for e in found],
        "Nothing yet.",
    )


def _state(worker: Worker) -> str:
    if worker.died_at is not None:
        return f"dead: {worker.died_why or 'unknown'}"
    return "stopping" if worker.stopping_at is not None else "alive"


def _print(tenant: Tenant, as_json: bool) -> None:
    if as_json:
        print_json(tenant)
        return
    print_pairs(
        {
            "tenant": f"{tenant.name} ({tenant.id})",
            **{name.replace("_", " "): value for name, value in tenant.limits.items()},
            "running": tenant.running,
            "queued": tenant.queued,
        }
    )
