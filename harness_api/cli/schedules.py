"""`harness schedules`: runs that are started by themselves."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group, pairs
from harness_api.cli.output import clock, print_json, print_pairs, print_table, say, short
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client.types import Firing, Schedule

app = group("Start runs by the clock: cron, every so often, or once.")

Name = Annotated[str, typer.Argument(metavar="SCHEDULE", help="A schedule's name, or id: sched_…")]
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def duration_s(text: str, option: str) -> float:
    """Read `90`, `90s`, `15m`, `2h` or `1d`; raises `Invalid`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise Invalid(
            f"{option} takes seconds, or a number with s, m, h or d such as 15m; not {text!r}",
            code="USAGE",
            field=option,
        )
    return float(match[1]) * _UNITS_S[match[2]]


def moment(text: str | None, option: str) -> datetime | None:
    """Read a time with an offset; raises `Invalid`."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise Invalid(
            f"{option} takes a time with its offset, such as 2026-01-31T12:00:00+01:00 or "
            f"2026-01-31T11:00:00Z; not {text!r}",
            code="USAGE",
            field=option,
        )
    return found


@app.command(
    epilog=examples(
        "harness schedules create morning analyst 'Sum up {scheduled_date}' "
        "--cron '0 9 * * 1-5' --time-zone Europe/Berlin",
        "harness schedules create poll watcher 'Anything new?' --every 15m --jitter 1m",
        "harness schedules create once analyst 'Close the year' --at 2026-12-31T22:00:00Z",
        "harness schedules create import loader - --cron @hourly --overlap enqueue "
        "--catch-up all --window 6h < task.txt",
    )
    + "\n\nTexts: {scheduled_at}, {scheduled_date} and {schedule} in INPUT are filled in."
)
def create(  # noqa: PLR0917 - typer wants it so
    name: Annotated[str, typer.Argument(metavar="NAME", help="a-z 0-9 _ . -, unique.")],
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The name of an agent.")],
    text: Annotated[
        str, typer.Argument(metavar="INPUT", help="What it is asked; - reads standard input.")
    ],
    cron: Annotated[
        str | None, typer.Option(help="minute hour day month weekday, or @daily and the like.")
    ] = None,
    time_zone: Annotated[
        str | None, typer.Option("--time-zone", "-z", help="Of --cron. Default: UTC.")
    ] = None,
    every: Annotated[str | None, typer.Option(help="An interval: 90s, 15m, 2h, 1d.")] = None,
    at: Annotated[str | None, typer.Option(help="Once, at a time with offset.")] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            help="While its last run is going: skip (default), enqueue, cancel_previous or allow."
        ),
    ] = None,
    catch_up: Annotated[
        str | None,
        typer.Option(help="Times that came while nothing ran: none, last (default) or all."),
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="How late they may fire. Default: 60s; 1d for --at.")
    ] = None,
    jitter: Annotated[str | None, typer.Option(help="Put each firing off by up to this.")] = None,
    starts_at: Annotated[str | None, typer.Option(help="Nothing before this time.")] = None,
    ends_at: Annotated[str | None, typer.Option(help="Nothing after this time.")] = None,
    max_firings: Annotated[int | None, typer.Option(min=1, help="It ends after so many.")] = None,
    version: Annotated[
        int | None, typer.Option(min=1, help="Of the agent. Default: the newest when it fires.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="A session for all its runs.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="name=value; repeatable.")] = None,
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="0 goes first.")] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Fire only after `resume`.")] = False,
    as_json: Json = False,
) -> None:
    """Make a schedule that starts runs of an agent."""
    if sum(way is not None for way in (cron, every, at)) != 1:
        raise Invalid("give exactly one of --cron, --every and --at", code="USAGE")
    run: dict[str, Any] = {
        "agent_version": version,
        "session_id": session,
        "tags": pairs(tag or [], "--tag") or None,
        "priority": priority,
    }
    question = sys.stdin.read() if text == "-" else text
    with connect() as client:
        schedule = client.schedules.create(
            name,
            agent,
            question,
            cron=cron,
            time_zone=time_zone,
            every_s=None if every is None else duration_s(every, "--every"),
            at=moment(at, "--at"),
            overlap=overlap,
            catch_up=catch_up,
            window_s=None if window is None else duration_s(window, "--window"),
            jitter_s=None if jitter is None else duration_s(jitter, "--jitter"),
            starts_at=moment(starts_at, "--starts-at"),
            ends_at=moment(ends_at, "--ends-at"),
            max_firings=max_firings,
            paused=paused or None,
            run={k: v for k, v in run.items() if v is not None},
        )
    _tell(schedule, as_json)


@app.command("list")
def list_schedules(limit: Limit = 50, as_json: Json = False) -> None:
    """List schedules, newest first."""
    with connect() as client:
        found = list(client.schedules.list(limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("name", "status", "when", "agent", "next", "fired", "input"),
        [
            (
                s.name, s.status, when(s), s.run.get("agent"), s.next_at, s.firings,
                short(s.run.get("input", ""), 40),
            )
            for s in found
        ],
        "No schedules. Make one with `harness schedules create`.",
    )  # fmt: skip


@app.command()
def show(schedule: Name, limit: Limit = 10, as_json: Json = False) -> None:
    """Show a schedule: its rules, its coming times and its newest firings."""
    with connect() as client:
        found = client.schedules.get(schedule)
        firings = list(client.schedules.firings(schedule, limit))
    if as_json:
        print_json({"schedule": found, "firings": firings})
        return
    print_pairs(
        {
            "schedule": found.name,
            "id": found.id,
            "status": found.status,
            "paused": found.paused_at,
            "why": found.pause_reason,
            "when": when(found),
            "starts": found.starts_at,
            "ends": found.ends_at,
            "overlap": found.overlap,
            "catch-up": f"{found.catch_up}, within {found.window_s:g} s",
            "jitter": f"up to {found.jitter_s:g} s" if found.jitter_s else None,
            "fired": f"{found.firings}{f' of {found.max_firings}' if found.max_firings else ''}",
            "waiting": found.waiting or None,
            "run": found.run,
        }
    )
    print("\nComing:")
    print("\n".join(f"  {clock(at)}" for at in found.next) or "  nothing")
    print()
    _print_firings(firings)


@app.command(epilog=examples("harness schedules pause morning --reason 'holiday'"))
def pause(
    schedule: Name,
    reason: Annotated[str, typer.Option(help="Kept with the schedule.")] = "",
    as_json: Json = False,
) -> None:
    """Let nothing fire until `resume`; runs that are going go on."""
    with connect() as client:
        found = client.schedules.pause(schedule, reason)
    _tell(found, as_json)


@app.command()
def resume(schedule: Name, as_json: Json = False) -> None:
    """Let it fire again from now on; what fell into the pause is dropped."""
    with connect() as client:
        found = client.schedules.resume(schedule)
    _tell(found, as_json)


@app.command(
    epilog=examples(
        "harness schedules trigger morning", "harness schedules trigger poll --overlap allow"
    )
    + "\n\nThe exit code is 0 if a run was started or waits to be, else 1."
)
def trigger(
    schedule: Name,
    overlap: Annotated[str | None, typer.Option(help="Instead of the schedule's own.")] = None,
    as_json: Json = False,
) -> None:
    """Fire now, also when paused; its times stay as they are."""
    with connect() as client:
        firing = client.schedules.trigger(schedule, overlap=overlap)
    if as_json:
        print_json(firing)
    elif firing.run_id is not None:
        print(firing.run_id)
    else:
        say(f"{firing.outcome}: {firing.reason}")
    if firing.outcome not in {"started", "waiting"}:
        raise typer.Exit(1)


@app.command()
def delete(schedule: Name, as_json: Json = False) -> None:
    """Remove a schedule and the record of its firings; its runs stay."""
    with connect() as client:
        client.schedules.delete(schedule)
    if as_json:
        print_json({"schedule": schedule, "deleted": True})
    else:
        print(f"{schedule} is deleted")


@app.command()
def firings(schedule: Name, limit: Limit = 20, as_json: Json = False) -> None:
    """List what fired, when and which run; or why it did not."""
    with connect() as client:
        found = list(client.schedules.firings(schedule, limit))
    if as_json:
        print_json({"data": found})
    else:
        _print_firings(found)


def when(schedule: Schedule) -> str:
    """Write when a schedule fires."""
    found = schedule.when
    if "cron" in found:
        return f"{found['cron']} ({found.get('time_zone', 'UTC')})"
    if "every_s" in found:
        return f"every {found['every_s']:g} s"
    return f"at {clock(datetime.fromisoformat(found['at']))}"


def _tell(schedule: Schedule, as_json: bool) -> None:
    if as_json:
        print_json(schedule)
        return
    coming = f", next {clock(schedule.next_at)}" if schedule.next_at else ""
    print(f"{schedule.name} is {schedule.status}{coming}")


def _print_firings(found: list[Firing]) -> None:
    print_table(
        ("time", "outcome", "run", "by", "why"),
        [(f.at, f.outcome, f.run_id, f.triggered_by, short(f.reason or "", 70)) for f in found],
        "No firings yet.",
    )
