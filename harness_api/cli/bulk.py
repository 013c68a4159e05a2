"""One command over many runs: look first, ask, do, report.

Which runs: `--where status=failed,error.code=LIMITED --since 2h`. A retry takes only runs that have
no retry yet, and no children, so that nothing is done twice.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from harness_api.bulk import DEFAULT_STATUS
from harness_api.cli.output import print_json, say, short
from harness_api.cli.when import moment
from harness_common.core.errors import HarnessError, Invalid

if TYPE_CHECKING:
    from harness_api.client import Client, Run

Where = Annotated[
    list[str] | None,
    typer.Option(
        help="Many runs at once, by name=value: status, agent, session, parent, error.code, "
        "stop_reason, tag.NAME; with commas or repeated, all must hold."
    ),
]
Since = Annotated[str | None, typer.Option(help="With --where: made since 2h, 7d or a time.")]
Until = Annotated[str | None, typer.Option(help="With --where: made before 2h, 7d or a time.")]
Most = Annotated[int, typer.Option("--limit", "-n", min=1, help="With --where: how many at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --where: do not ask.")]
ManyId = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="A run's id: run_…; or give --where.")
]

_SHOWN: Final = 5
_FILTERS: Final = {
    "agent": "agent",
    "session": "session_id",
    "parent": "parent",
    "error.code": "error_code",
    "stop_reason": "stop_reason",
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which runs, and whether to ask first."""

    where: Sequence[str]
    since: str | None
    until: str | None
    limit: int
    yes: bool


@dataclass(slots=True)
class Report:
    """What came of each run."""

    action: str
    matched: int = 0
    made: list[dict[str, str]] = field(default_factory=list)
    skipped: list[dict[str, str]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)
    limit_reached: bool = False
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the report as one document."""
        return {
            "action": self.action,
            "matched": self.matched,
            "made": self.made,
            "skipped": self.skipped,
            "failed": self.failed,
            "limit_reached": self.limit_reached,
            "interrupted": self.interrupted,
        }


def check_target(run_id: str | None, where: Sequence[str] | None) -> None:
    """Refuse a command that names no run, or both one and many."""
    if (run_id is None) == (not where):
        raise Invalid("give either a RUN or --where", code="USAGE", field="--where")


def run_bulk(
    client: Client,
    action: str,
    chosen: Selection,
    do: Callable[[Run], Run],
    *,
    as_json: bool,
) -> None:
    """Do something to all chosen runs; exit code 1 when one of them failed."""
    filters = _filters(action, chosen)
    found = list(client.runs.list(**filters, limit=chosen.limit))
    report = Report(action, len(found), limit_reached=len(found) == chosen.limit)
    if found:
        _preview(action, found, chosen.limit)
        _ask(action, len(found), chosen.yes)
        _do_all(found, do, report)
    _print(report, as_json)
    if report.failed or report.interrupted:
        raise typer.Exit(1)


def _filters(action: str, chosen: Selection) -> dict[str, Any]:
    out: dict[str, Any] = {"tags": {}, "status": []}
    for part in (p for text in chosen.where for p in text.split(",") if p.strip()):
        name, equals, value = (t.strip() for t in part.partition("="))
        if not equals or not value:
            raise _wrong(part)
        if name == "status":
            out["status"].append(value)
        elif name.startswith("tag."):
            if out["tags"].setdefault(name.removeprefix("tag."), value) != value:
                raise _wrong(part)
        elif name in _FILTERS and out.setdefault(_FILTERS[name], value) == value:
            pass
        else:
            raise _wrong(part)
    out["status"] = out["status"] or [*DEFAULT_STATUS[action]]
    out["created_after"] = moment(chosen.since, "--since")
    out["created_before"] = moment(chosen.until, "--until")
    if action == "retry":
        out["retried"] = False
        if "parent" not in out:  # a retry of their parent goes on with them
            out["child"] = False
    return out


def _wrong(part: str) -> Invalid:
    names = ", ".join(["status", *_FILTERS, "tag.NAME"])
    return Invalid(
        f"--where takes name=value with one of {names}, each but status once, not {part!r}",
        code="USAGE",
        field="--where",
        value=part,
    )


def _preview(action: str, found: Sequence[Run], limit: int) -> None:
    say(f"{len(found)} runs to {action}" + (f" (--limit {limit})" if len(found) == limit else ""))
    codes = Counter(_kind(run) for run in found)
    for code, count in codes.most_common(10):
        say(f"  {count:>6}  {code}")
    for run in found[:_SHOWN]:
        say(f"  {run.id}  {run.agent.name}  {short(run.input, 40)}")
    if len(found) > _SHOWN:
        say(f"  and {len(found) - _SHOWN} more")


def _kind(run: Run) -> str:
    code = (run.error or {}).get("code")
    return f"{run.status}  {code}" if code else run.status


def _ask(action: str, count: int, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Invalid(
            f"nobody is there to confirm; add --yes to {action} {count} runs", code="USAGE",
            field="--yes",
        )  # fmt: skip
    typer.confirm(f"{action} {count} runs?", abort=True, err=True)


def _do_all(found: Sequence[Run], do: Callable[[Run], Run], report: Report) -> None:
    every = max(1, len(found) // 20)
    for count, run in enumerate(found, 1):
        try:
            _do_one(run, do, report)
        except KeyboardInterrupt:
            report.interrupted = True
            return
        if count % every == 0 or count == len(found):
            say(f"{count}/{len(found)}")


def _do_one(run: Run, do: Callable[[Run], Run], report: Report) -> None:
    """Do one; a conflict means that the run has changed since it was chosen: it is skipped."""
    try:
        after = do(run)
    except HarnessError as error:
        why = {"run": run.id, "code": error.error_code, "why": error.message}
        conflict = getattr(error, "status", None) == 409
        (report.skipped if conflict else report.failed).append(why)
        return
    report.made.append({"run": run.id, "became": after.id, "status": after.status})


def _print(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report.to_json())
        return
    if not report.matched:
        print(f"No runs to {report.action}.")
        return
    counts = (len(report.made), len(report.skipped), len(report.failed))
    print("{}: {} made, {} skipped, {} failed".format(report.action, *counts))
    for name, rows in (("skipped", report.skipped), ("failed", report.failed)):
        for row in rows:
            print(f"  {name}  {row['run']}  {row['code']}: {short(row['why'], 120)}")
    if report.limit_reached:
        say("There may be more: repeat the command, or raise --limit.")
    if report.interrupted:
        say("Interrupted: the rest was not touched.")
