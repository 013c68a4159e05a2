"""`harness runs export`, `harness export`, `harness erase`, `harness storage` and `harness tenant
retention`: what is kept, taking it out, taking it away.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from harness_api.cli.options import Json, Limit, RunId, connect, examples, group
from harness_api.cli.output import print_json, print_pairs, print_table, say, size
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client.types.retention import Erasure, Retention, Storage

erase = group("Delete for good all that there is of a user or a tenant.")
retention = group("How long things are kept after the end of their run.")

Output = Annotated[str, typer.Option("--output", "-o", help="A file, or - for stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
NoContent = Annotated[bool, typer.Option("--no-content", help="Leave out the bytes of artifacts.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Count only.")]
WaitFor = Annotated[bool, typer.Option("--wait", help="Until it is done.")]
Days = Annotated[str | None, typer.Option(help="Days, or `default` for the platform's.")]
_POLL_S = 1.0
_THEIRS = "the platform's"


def register(root: typer.Typer, runs: typer.Typer) -> None:
    """Add the commands that stand alone, and `runs export`."""
    root.command(
        epilog=examples(
            "harness export -o everything.ndjson",
            "harness export --user ann -o ann.ndjson",
            "harness export --check ann.ndjson",
        )
    )(export)
    root.command()(storage)
    runs.command("export", epilog=examples("harness runs export RUN -o run.ndjson"))(export_run)


def export_run(
    run_id: RunId,
    output: Output = "-",
    no_content: NoContent = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the whole history of a run: one JSON document a line, the last one with a digest."""
    with connect() as client:
        _save(client.runs.export(run_id, content=not no_content), output, force, as_json)


def export(
    user: Annotated[str | None, typer.Option("--user", "-u", help="Of this user only.")] = None,
    output: Output = "-",
    no_content: NoContent = False,
    check: Annotated[
        Path | None, typer.Option("--check", help="Look whether this file is whole; ask nobody.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write all that there is of the tenant, or of one user."""
    if check is not None:
        _tell(check, _checked(check), as_json)
        return
    with connect() as client:
        _save(client.data.export(user, content=not no_content), output, force, as_json)


def _save(pieces: Iterable[bytes], output: str, force: bool, as_json: bool) -> None:
    """Write an export, and make the file what it is named only when it is whole."""
    if output == "-":
        sys.stdout.flush()
        _copy(pieces, sys.stdout.buffer)
        return
    path = Path(output)
    if path.exists() and not force:
        raise Invalid(f"{path} exists; use --force or another -o", code="FILE_EXISTS")
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            records = _copy(pieces, file)
        part.replace(path)
    except OSError as error:
        raise Invalid(f"Cannot write {path}: {error.strerror}", code="USAGE") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    _tell(path, records, as_json)


def _copy(pieces: Iterable[bytes], file: BinaryIO) -> dict[str, int]:
    from harness_api.client.export import Check

    check = Check()
    for piece in pieces:
        check.feed(piece)
        file.write(piece)
    check.finish()
    return dict(check.records)


def _checked(path: Path) -> dict[str, int]:
    from harness_api.client.export import Check

    check = Check()
    try:
        with path.open("rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                check.feed(piece)
    except OSError as error:
        raise Invalid(f"Cannot read {path}: {error.strerror}", code="USAGE") from error
    check.finish()
    return dict(check.records)


def _tell(path: Path, records: dict[str, int], as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path), "records": records, "size_bytes": path.stat().st_size})
        return
    say(f"whole, {size(path.stat().st_size)}: " + ", ".join(f"{n} {k}" for k, n in records.items()))
    print(path)


# --- erasure --------------------------------------------------------------------------------------


@erase.command(
    "user", epilog=examples("harness erase user ann --dry-run", "harness erase user ann")
)
def erase_user(
    user_id: Annotated[str, typer.Argument(metavar="USER")],
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: WaitFor = False,
    as_json: Json = False,
) -> None:
    """Erase a user's sessions, runs, facts and files. Runs under way are cancelled first."""
    _erase(f"the user {user_id}", user_id, None, dry_run, yes, wait, as_json)


@erase.command("tenant", epilog=examples("harness erase tenant ten_0193… --dry-run"))
def erase_tenant(
    tenant_id: Annotated[str, typer.Argument(metavar="TENANT", help="A tenant's id: ten_…")],
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: WaitFor = False,
    as_json: Json = False,
) -> None:
    """Erase a tenant with its keys and all that it has; for an operator's key."""
    _erase(f"the tenant {tenant_id}", None, tenant_id, dry_run, yes, wait, as_json)


def _erase(
    what: str,
    user_id: str | None,
    tenant_id: str | None,
    dry_run: bool,
    yes: bool,
    wait: bool,
    as_json: bool,
) -> None:
    with connect() as client:
        found = client.data.preview_erasure(user_id, tenant_id=tenant_id)
        if dry_run:
            print_json(found) if as_json else print_pairs(_words(found.model_dump()))
            return
        if not yes:
            counts = ", ".join(f"{n} {k}" for k, n in _words(found.model_dump()).items() if n)
            typer.confirm(f"Erase {what} for good ({counts or 'nothing'})?", abort=True, err=True)
        one = client.data.erase(user_id, tenant_id=tenant_id)
        while wait and one.finished_at is None:
            time.sleep(_POLL_S)
            one = client.data.erasure(one.id)
    _print_erasure(one, as_json)


@erase.command("status")
def erase_status(
    erasure_id: Annotated[str, typer.Argument(metavar="ERASURE", help="Its id: ers_…")],
    as_json: Json = False,
) -> None:
    """Show how far an erasure is."""
    with connect() as client:
        _print_erasure(client.data.erasure(erasure_id), as_json)


@erase.command("list")
def erase_list(limit: Limit = 50, as_json: Json = False) -> None:
    """List erasures, newest first."""
    with connect() as client:
        found = list(client.data.erasures(limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("id", "of", "phase", "runs", "asked", "done"),
        [
            (e.id, e.user_id or e.subject, e.phase, e.counts.get("runs", 0), e.created_at,
             e.finished_at)
            for e in found
        ],
        "Nothing was erased.",
    )  # fmt: skip


def _print_erasure(one: Erasure, as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    of = one.user_id or (one.tenant_id if one.subject == "tenant" else "a user")
    print_pairs({"erasure": one.id, "of": of, "phase": one.phase, "done": one.finished_at,
                 **_words(one.counts)})  # fmt: skip


def _words(counts: dict[str, int]) -> dict[str, int]:
    return {name.replace("_", " "): n for name, n in counts.items()}


# --- retention ------------------------------------------------------------------------------------


@retention.command("show")
def show_retention(as_json: Json = False) -> None:
    """Show how long things are kept."""
    with connect() as client:
        _print_ages(client.data.retention(), as_json)


@retention.command(
    "set",
    epilog=examples(
        "harness tenant retention set --events-days 30 --runs-days 365",
        "harness tenant retention set --events-days default",
    ),
)
def set_retention(
    events_days: Days = None,
    checkpoints_days: Days = None,
    artifacts_days: Days = None,
    runs_days: Days = None,
    as_json: Json = False,
) -> None:
    """Change the ages that are named: days after the end of a run, 1 to 36,500."""
    given = {"events_days": events_days, "checkpoints_days": checkpoints_days,
             "artifacts_days": artifacts_days, "runs_days": runs_days}  # fmt: skip
    changes = {name: _days(name, text) for name, text in given.items() if text is not None}
    if not changes:
        raise Invalid("say which age, such as --events-days 30", code="USAGE", field="OPTIONS")
    with connect() as client:
        _print_ages(client.data.set_retention(**changes), as_json)


def _days(name: str, text: str) -> int | None:
    if text == "default":
        return None
    if not text.isdecimal():
        option = f"--{name.replace('_', '-')}"
        raise Invalid(
            f"{option} takes a number of days or `default`, not {text!r}", code="USAGE",
            field=option,
        )  # fmt: skip
    return int(text)


def _print_ages(found: Retention, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_pairs({name.removesuffix("_days"): _age(found, name) for name in found.holds})


def _age(found: Retention, name: str) -> str:
    """Say how long something is kept, and who says so: it goes no later than its run."""
    days, own, of_runs = found.holds[name], found.own.get(name), found.holds.get("runs_days")
    if days is None:
        return f"for ever ({_THEIRS})"
    if own == days:
        return f"{days} days (set by the tenant)"
    return f"{days} days ({'with the run' if days == of_runs and name != 'runs_days' else _THEIRS})"


# --- storage --------------------------------------------------------------------------------------


def storage(as_json: Json = False) -> None:
    """Show what is stored, and what is next to be deleted; for an operator's key."""
    with connect() as client:
        found = client.data.storage()
    if as_json:
        print_json(found)
    else:
        _print_storage(found)


def _print_storage(found: Storage) -> None:
    say(f"database: {size(found.database_bytes)}; blobs to delete: {found.garbage_blobs}\n")
    print_table(
        ("table", "rows", "size"),
        [(t.table, t.rows, size(t.bytes)) for t in found.tables if t.bytes],
        "No tables.",
    )
    say("")
    print_table(
        ("week", "table", "rows", "size"),
        [(p.week.isoformat(), p.table, p.rows, size(p.bytes)) for p in found.partitions if p.rows],
        "No week has rows yet, or none was counted.",
    )
    say("")
    print_table(
        ("tenant", "id", "runs", "events", "size", "files", "oldest run", "due now"),
        [
            (
                t.name, t.tenant_id, t.runs, t.events, size(t.bytes), size(t.artifact_bytes),
                t.oldest_run_at,
                f"{t.due_runs} runs, {t.due_events}/{t.due_checkpoints}/{t.due_artifacts} of them "
                "events/checkpoints/artifacts",
            )
            for t in found.tenants
        ],
        "No tenants.",
    )  # fmt: skip
