"""`harness approvals`: tool calls that wait for a person."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness_api.cli.options import Json, Limit, connect, examples, group, pairs
from harness_api.cli.output import clean, clock, print_json, print_pairs, print_table, say, short
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client import Approval

app = group("Tool calls that wait for approval: look at them, approve, change or deny them.")

ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL", help="An approval's id: appr_…")]
Digest = Annotated[
    str | None,
    typer.Option("--digest", help="The digest you were shown; refused when it is another by now."),
]


@app.command(
    "list", epilog=examples("harness approvals list", "harness approvals list --status all")
)
def list_approvals(
    status: Annotated[
        str, typer.Option(help="pending, approved, denied, expired, cancelled, void, used or all.")
    ] = "pending",
    run: Annotated[str | None, typer.Option(help="Only those of this run.")] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List approvals, newest first; those that wait for somebody unless you say otherwise."""
    with connect() as client:
        wanted = None if status == "all" else status
        found = list(client.approvals.list(status=wanted, run_id=run, limit=limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("approval", "status", "tool", "risk", "run", "call", "until", "arguments"),
        [
            (a.id, a.status, a.tool, a.risk, a.run_id, a.call, a.expires_at, short(_line(a), 60))
            for a in found
        ],
        "Nothing waits for approval." if status == "pending" else "No approvals.",
    )


@app.command(epilog=examples("harness approvals show APPROVAL"))
def show(approval_id: ApprovalId, as_json: Json = False) -> None:
    """Show what a call would do, why it needs a person, where it comes from, who may answer."""
    with connect() as client:
        found = client.approvals.get(approval_id)
    if as_json:
        print_json(found)
        return
    print_approval(found)
    if found.status == "pending":
        print(f"\n{how_to_answer(found.id)}")


@app.command(
    epilog=examples(
        "harness approvals approve APPROVAL",
        "harness approvals approve APPROVAL --set amount=20 --reason 'the rest next month'",
        "harness approvals approve APPROVAL --edit arguments.json --yes",
        "harness approvals approve APPROVAL --digest 5b1f… --json",
    )
)
def approve(
    approval_id: ApprovalId,
    edit: Annotated[
        str | None, typer.Option(metavar="FILE", help="A JSON file with other arguments; - reads.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="name=value: change one argument; JSON or text. Repeatable."),
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Kept with the decision.")] = None,
    digest: Digest = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask after showing it.")] = False,
    as_json: Json = False,
) -> None:
    """Approve a call with exactly the arguments that are shown, or with changed ones."""
    if edit is not None and set_:
        raise Invalid("--edit and --set exclude each other", code="USAGE")
    with connect() as client:
        found = client.approvals.get(approval_id)
        arguments = _changed(found, edit, set_ or [])
        if digest is None:
            _confirm(found, arguments, yes=yes, quiet=as_json)
        done = client.approvals.approve(
            approval_id, digest or found.digest, arguments=arguments, reason=reason
        )
    _print_done(done, as_json)


@app.command(epilog=examples("harness approvals deny APPROVAL --reason 'not this customer'"))
def deny(
    approval_id: ApprovalId,
    reason: Annotated[str, typer.Option(help="The model is told.")],
    digest: Digest = None,
    as_json: Json = False,
) -> None:
    """Deny a call; the model is told why and goes on."""
    with connect() as client:
        done = client.approvals.deny(approval_id, reason, expected_digest=digest)
    _print_done(done, as_json)


def how_to_answer(approval_id: str) -> str:
    """Say by which commands an approval is answered."""
    return (
        f"`harness approvals approve {approval_id}` approves it (--set name=value changes an "
        f"argument),\n`harness approvals deny {approval_id} --reason '…'` denies it."
    )


def print_approval(found: Approval) -> None:
    """Print an approval as people need it to decide."""
    origin = found.provenance or {}
    taint = " after reading content from outside" if origin.get("tainted") else ""
    four = "; not by who started the run" if found.four_eyes else ""
    decided = f"{found.decided_by} at {clock(found.decided_at)}" if found.decided_by else None
    print_pairs(
        {
            "approval": f"{found.id} ({found.status})",
            "run": f"{found.run_id} ({found.run_status}, agent {found.acting or found.agent})",
            "call": found.call,
            "tool": f"{found.tool} v{found.tool_version} ({found.effect}, risk {found.risk})",
            "asked by": f"model step {origin.get('step')}{taint}",
            "started by": origin.get("started_by"),
            "why": "; ".join(found.reasons) or found.rule,
            "for": f"{' or '.join(found.approver_roles)}{four}",
            "until": found.expires_at,
            "decided by": decided,
            "reason": found.reason,
            "model asked": found.original_arguments,
            "changed by": found.edited_by,
            "used": found.used_at,
            "digest": found.digest,
        }
    )
    preview = found.preview or {}
    if preview.get("kind") == "tool" and found.original_digest is None:
        print(f"\n{clean(str(preview.get('text', '')))}")
    print("\nArguments:")
    print(clean(json.dumps(found.arguments, indent=2, ensure_ascii=False)))


def _line(found: Approval) -> str:
    return json.dumps(found.arguments, ensure_ascii=False)


def _changed(found: Approval, edit: str | None, changes: list[str]) -> dict[str, Any] | None:
    """Return the arguments to use instead; None for those shown."""
    if edit is not None:
        text = sys.stdin.read() if edit == "-" else Path(edit).read_text()
        try:
            read = json.loads(text)
        except ValueError as error:
            raise Invalid(f"{edit} is not JSON: {error}", code="USAGE", field="--edit") from error
        if not isinstance(read, dict):
            raise Invalid(f"{edit} holds no JSON object", code="USAGE", field="--edit")
        return read
    if not changes:
        return None
    return {**found.arguments, **{k: _value(v) for k, v in pairs(changes, "--set").items()}}


def _value(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except ValueError:
        return text


def _confirm(found: Approval, arguments: dict[str, Any] | None, *, yes: bool, quiet: bool) -> None:
    """Show what is approved, and ask; who pipes says --yes or --digest."""
    if not quiet:
        print_approval(found)
        if arguments is not None:
            print("\nChanged to:")
            print(clean(json.dumps(arguments, indent=2, ensure_ascii=False)))
        print()
    if yes or found.status != "pending":
        return
    if quiet or not sys.stdin.isatty():
        raise Invalid(
            "say --yes to approve what is shown now, or --digest with the digest you were shown",
            code="USAGE",
        )
    if not typer.confirm("Approve this call?"):
        say("Nothing was decided.")
        raise typer.Exit(1)


def _print_done(done: Approval, as_json: bool) -> None:
    if as_json:
        print_json(done)
    else:
        print(f"{done.id} is {done.status}; the run {done.run_id} is {done.run_status}")
