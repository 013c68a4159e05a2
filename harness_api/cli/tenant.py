"""`harness tenant`, `harness platform`, `harness workers` and `harness audit`: who we are, what we
and all may use, who works, who did what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group
from harness_api.cli.output import print_json, print_pairs, print_table
from harness_api.cli.when import moment
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client.types import Platform, Tenant, Worker

app = group("Look at the tenant of the key and change its limits.")
platform = group("Look at what concerns all tenants and change it: for an operator's key.")

MaxRunning = Annotated[int | None, typer.Option(min=0, help="Runs that may go on at once.")]
Weight = Annotated[
    float | None, typer.Option(min=0.01, max=1000, help="Share against other tenants.")
]
_NONE = "A number, or `none` for no limit."
StartsPerS = Annotated[str | None, typer.Option(help=f"Runs started a second. {_NONE}")]
StepsPerS = Annotated[str | None, typer.Option(help=f"Steps a second. {_NONE}")]
TokensPerDay = Annotated[str | None, typer.Option(help=f"Tokens a day. {_NONE}")]
CostPerDay = Annotated[
    str | None, typer.Option("--cost-usd-per-day", help=f"Dollars a day. {_NONE}")
]


def register(root: typer.Typer) -> None:
    """Add the commands that stand alone."""
    root.command()(workers)
    root.command()(audit)


@app.command()
def show(as_json: Json = False) -> None:
    """Show the tenant, its limits and what it has going."""
    with connect() as client:
        _print(client.tenant.get(), as_json)


@app.command(
    epilog=examples(
        "harness tenant limits --max-running 50 --weight 3",
        "harness tenant limits --starts-per-s 10 --tokens-per-day none",
    )
)
def limits(
    max_running: MaxRunning = None,
    weight: Weight = None,
    starts_per_s: StartsPerS = None,
    steps_per_s: StepsPerS = None,
    tokens_per_day: TokensPerDay = None,
    cost_usd_per_day: CostPerDay = None,
    as_json: Json = False,
) -> None:
    """Change the limits of the tenant that are named; without any, show them."""
    changes = _changes(
        max_running=max_running, weight=weight, starts_per_s=starts_per_s, steps_per_s=steps_per_s,
        tokens_per_day=tokens_per_day, cost_usd_per_day=cost_usd_per_day,
    )  # fmt: skip
    with connect() as client:
        _print(client.tenant.set_limits(**changes) if changes else client.tenant.get(), as_json)


@platform.command("limits", epilog=examples("harness platform limits --max-running 500"))
def platform_limits(
    max_running: Annotated[
        str | None, typer.Option(help="Runs of all tenants that may go on at once, or `none`.")
    ] = None,
    starts_per_s: StartsPerS = None,
    steps_per_s: StepsPerS = None,
    tokens_per_day: TokensPerDay = None,
    cost_usd_per_day: CostPerDay = None,
    as_json: Json = False,
) -> None:
    """Change the limits over all tenants that are named; without any, show them."""
    changes = _changes(
        max_running=max_running, starts_per_s=starts_per_s, steps_per_s=steps_per_s,
        tokens_per_day=tokens_per_day, cost_usd_per_day=cost_usd_per_day,
    )  # fmt: skip
    with connect() as client:
        found = client.platform.set_limits(**changes) if changes else client.platform.limits()
    if as_json:
        print_json(found)
        return
    print_pairs(_going(found))


def _changes(**given: str | float | None) -> dict[str, float | None]:
    """Read the limits that were named; raises `Invalid` for what is no number."""
    out: dict[str, float | None] = {}
    for name, text in given.items():
        if text is None:
            continue
        if not isinstance(text, str):
            out[name] = text
            continue
        try:
            out[name] = None if text == "none" else float(text)
        except ValueError:
            option = f"--{name.replace('_', '-')}"
            raise Invalid(
                f"{option} takes a number or `none`, not {text!r}", code="USAGE", field=option
            ) from None
    return out


@platform.command()
def tenants(limit: Limit = 50, as_json: Json = False) -> None:
    """List all tenants with their limits, newest first."""
    with connect() as client:
        found = list(client.platform.tenants(limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "name", "running", "queued", "limits"),
        [(t.id, t.name, t.running, t.queued, _limits(t)) for t in found],
        "No tenants.",
    )


@platform.command(
    epilog=examples("harness platform tenant-limits TENANT --max-running 50 --tokens-per-day none")
)
def tenant_limits(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="Its id: ten_…")],
    max_running: MaxRunning = None,
    weight: Weight = None,
    starts_per_s: StartsPerS = None,
    steps_per_s: StepsPerS = None,
    tokens_per_day: TokensPerDay = None,
    cost_usd_per_day: CostPerDay = None,
    as_json: Json = False,
) -> None:
    """Change the limits of any tenant that are named; without any, show them."""
    changes = _changes(
        max_running=max_running, weight=weight, starts_per_s=starts_per_s, steps_per_s=steps_per_s,
        tokens_per_day=tokens_per_day, cost_usd_per_day=cost_usd_per_day,
    )  # fmt: skip
    with connect() as client:
        _print(client.platform.set_tenant_limits(tenant, **changes), as_json)


def workers(
    worker: Annotated[
        str | None,
        typer.Argument(metavar="[WORKER]", help="An id: wrk_…. Lists the runs that it works on."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List worker processes, those that died within the hour included, or the runs of one."""
    if worker is not None:
        _worker_runs(worker, as_json)
        return
    with connect() as client:
        found = list(client.workers.list())
    if as_json:
        print_json({"data": found})
        return
    print_table(
        (
            "id", "name", "host", "pid", "version", "state", "held", "room", "queues",
            "sandbox", "seen",
        ),
        [
            (
                w.incarnation, w.name, w.host, w.pid, w.version, _state(w), w.held, w.concurrency,
                w.queues, _tier(w), w.seen_at,
            )
            for w in found
        ],
        "No workers. Start some with `harness worker` or `harness dev`.",
    )  # fmt: skip


def _worker_runs(worker: str, as_json: bool) -> None:
    with connect() as client:
        found = list(client.workers.runs(worker, 200))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("run", "agent", "status", "step", "next", "attempt", "held s", "lease s"),
        [
            (
                r.run_id, r.agent, r.status, r.step, r.next_kind, r.attempt, round(r.held_s, 1),
                r.lease_left_s,
            )
            for r in found
        ],
        "It works on no run of this tenant now.",
    )  # fmt: skip


def audit(
    actor: Annotated[str | None, typer.Option(help="Only by this key: key_….")] = None,
    action: Annotated[str | None, typer.Option(help="Only this, for example run.cancel.")] = None,
    target: Annotated[str | None, typer.Option(help="Only of this, as the list names it.")] = None,
    since: Annotated[str | None, typer.Option(help="Only since 2h, 7d or a time.")] = None,
    until: Annotated[str | None, typer.Option(help="Only before 2h, 7d or a time.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List who changed what, newest first."""
    with connect() as client:
        found = list(
            client.audit.list(
                limit,
                actor=actor,
                action=action,
                target=target,
                since=moment(since, "--since"),
                until=moment(until, "--until"),
            )
        )
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


def _tier(worker: Worker) -> str | None:
    """Name the sandbox that a worker found to hold; None until it knows."""
    return None if worker.sandbox is None else str(worker.sandbox["tier"])


def _print(tenant: Tenant, as_json: bool) -> None:
    if as_json:
        print_json(tenant)
        return
    print_pairs({"tenant": f"{tenant.name} ({tenant.id})", **_going(tenant)})


def _limits(tenant: Tenant) -> str:
    """Name the limits that there are."""
    set_ = {name: value for name, value in tenant.limits.items() if value is not None}
    return ", ".join(f"{name.replace('_', ' ')} {value:,g}" for name, value in set_.items())


def _going(found: Tenant | Platform) -> dict[str, object]:
    """Name the limits and what goes on."""
    shown: dict[str, object] = {
        name.replace("_", " "): "none" if value is None else value
        for name, value in found.limits.items()
    }
    used = getattr(found, "slot_seconds", None)
    return {
        **shown,
        "running": found.running,
        "queued": found.queued,
        "slot-seconds": None if used is None else round(used, 1),
    }
