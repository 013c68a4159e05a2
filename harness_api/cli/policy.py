"""`harness policy`: rules about tool calls, and what they decided."""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness_api.cli.effects import CallArgument
from harness_api.cli.options import Json, Limit, RunId, connect, examples, group
from harness_api.cli.output import clean, clock, print_json, print_pairs, print_table, short
from harness_common.core.errors import Invalid

if TYPE_CHECKING:
    from harness_api.client import Decision

app = group("Rules about tool calls: what is allowed, what a person is asked about, what is not.")

Agent = Annotated[
    str | None, typer.Option("--agent", help="The rules of this agent, not the tenant's.")
]
Version = Annotated[int | None, typer.Option("--version", min=1, help="Default: the newest.")]


@app.command(
    "set",
    epilog=examples("harness policy set policy.yaml", "harness policy set a.yaml --agent analyst"),
)
def set_policy(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML or JSON; - reads stdin.")],
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Set the rules: they hold from the next step of every run on."""
    source = _read(file)
    with connect() as client:
        made = client.policy.set(source, agent)
    if as_json:
        print_json(made)
    else:
        print(f"the policy of {_of(made.agent)} is at version {made.version} "
              f"({short(made.digest, 13)})")  # fmt: skip


@app.command(epilog=examples("harness policy show", "harness policy show --agent analyst"))
def show(agent: Agent = None, version: Version = None, as_json: Json = False) -> None:
    """Show a version of the rules, as they were written."""
    with connect() as client:
        found = client.policy.get(agent, version)
    if as_json:
        print_json(found)
    elif found.version == 0:
        print(f"No policy was set for {_of(agent)}; only what is built in applies.")
    else:
        print(f"# {_of(found.agent)}, version {found.version}, set {clock(found.created_at)} "
              f"by {found.created_by}, {found.digest}")  # fmt: skip
        print(clean(found.source).rstrip("\n"))


@app.command()
def versions(agent: Agent = None, limit: Limit = 50, as_json: Json = False) -> None:
    """List the versions of the rules, newest first."""
    with connect() as client:
        found = list(client.policy.versions(agent, limit))
    if as_json:
        print_json({"data": found})
        return
    print_table(
        ("version", "set", "by", "rules", "taint", "digest"),
        [
            (
                p.version, p.created_at, p.created_by, len(p.rules.get("rules", ())),
                p.rules.get("taint"), short(p.digest, 13),
            )
            for p in found
        ],
        f"No policy was set for {_of(agent)}.",
    )  # fmt: skip


@app.command(epilog=examples("harness policy diff", "harness policy diff 3 5 --agent analyst"))
def diff(
    old: Annotated[int | None, typer.Argument(min=0, help="Default: the one before.")] = None,
    new: Annotated[int | None, typer.Argument(min=1, help="Default: the newest.")] = None,
    agent: Agent = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two versions."""
    with connect() as client:
        after = client.policy.get(agent, new)
        number = after.version - 1 if old is None else old
        before = client.policy.get(agent, number) if number > 0 else None
    lines = list(
        difflib.unified_diff(
            before.source.splitlines() if before else [],
            after.source.splitlines(),
            f"{_of(agent)} version {max(number, 0)}",
            f"{_of(agent)} version {after.version}",
            lineterm="",
        )
    )
    if as_json:
        print_json({"old": max(number, 0), "new": after.version, "diff": lines})
    else:
        print("\n".join(map(clean, lines)) or "No difference.")


@app.command(
    "test",
    epilog=examples(
        "harness policy test http_get --outbound --untrusted-output --tainted",
        """harness policy test pay --effect write --arguments '{"amount": 900}' --file new.yaml""",
    ),
)
def try_rules(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="Its name.")],
    *,
    arguments: Annotated[str, typer.Option(help="The arguments, as JSON.")] = "{}",
    effect: Annotated[str, typer.Option(help="read, idempotent or write.")] = "read",
    risk: Annotated[str, typer.Option(help="low, medium or high.")] = "low",
    tag: Annotated[list[str], typer.Option(help="A permission tag; repeat for more.")] = [],  # noqa: B006
    outbound: Annotated[bool, typer.Option("--outbound", help="It can carry data out.")] = False,
    reads_private: Annotated[
        bool, typer.Option("--reads-private", help="It reads what must not leave.")
    ] = False,
    untrusted_output: Annotated[
        bool, typer.Option("--untrusted-output", help="Its results come from outside.")
    ] = False,
    timeout_s: Annotated[float, typer.Option(help="Its timeout.")] = 30.0,
    cost_usd: Annotated[float, typer.Option(help="Its cost estimate.")] = 0.0,
    agent: Annotated[str | None, typer.Option(help="The agent that calls it.")] = None,
    role: Annotated[str, typer.Option(help="The role of who started the run.")] = "operator",
    tainted: Annotated[
        bool, typer.Option("--tainted", help="The run has read untrusted content.")
    ] = False,
    read_private: Annotated[
        bool, typer.Option("--read-private", help="The run has read private data.")
    ] = False,
    used_outbound: Annotated[
        bool, typer.Option("--used-outbound", help="The run has used an outbound tool.")
    ] = False,
    budget_left_usd: Annotated[float | None, typer.Option(help="Left of today's money.")] = None,
    file: Annotated[
        Path | None, typer.Option(help="Rules of the tenant to try, not the newest.")
    ] = None,
    agent_file: Annotated[Path | None, typer.Option(help="The same for the agent's.")] = None,
    as_json: Json = False,
) -> None:
    """Say what would be decided about a made-up call; nothing is run."""
    declared = {
        "name": tool, "effect": effect, "risk": risk, "permission_tags": tag,
        "outbound": outbound, "reads_private": reads_private,
        "untrusted_output": untrusted_output, "timeout_s": timeout_s,
        "cost_estimate_usd": cost_usd,
    }  # fmt: skip
    with connect() as client:
        found = client.policy.test(
            declared,
            _arguments(arguments),
            {
                "agent": agent,
                "role": role,
                "tainted": tainted,
                "read_private": read_private,
                "used_outbound": used_outbound,
                "budget_left_usd": budget_left_usd,
                "source": None if file is None else _read(file),
                "agent_source": None if agent_file is None else _read(agent_file),
            },
        )
    if as_json:
        print_json(found)
    else:
        _print(found)


@app.command(epilog=examples("harness policy explain RUN 3.0"))
def explain(run_id: RunId, call: CallArgument, as_json: Json = False) -> None:
    """Explain the decision about a call: every rule in order, and the facts it rests on."""
    with connect() as client:
        found = client.policy.explain(run_id, call)
    if as_json:
        print_json(found)
        return
    print_pairs(
        {
            "call": f"{found.run_id} {found.call}",
            "tool": found.tool,
            "arguments": found.arguments,
            "status": f"{found.status} ({found.error_type})" if found.error_type else found.status,
        }
    )
    _print(found)
    if not found.same:
        print("\nDerived again it comes out otherwise: the arguments were edited, or what is built "
              "in has changed since.")  # fmt: skip


def _print(found: Decision) -> None:
    asks = found.verdict == "ask"
    print_pairs(
        {
            "verdict": found.verdict.upper(),
            "decided by": found.rule,
            "because": "; ".join(found.reasons),
            "policy": found.version,
            "approvers": found.approvers if asks else None,
            "four eyes": "yes" if asks and found.four_eyes else None,
            "expires": f"{found.expires_s:g} s" if asks and found.expires_s else None,
        }
    )
    print()
    print_table(
        ("", "layer", "rule", "why"),
        [("=>" if one.matched else "", one.layer, one.rule, one.why) for one in found.looks],
        "No rule was looked at.",
    )
    print("\nfacts")
    print_pairs({f"  {k}": v for k, v in found.facts.items() if v not in (None, [], False)})


def _of(agent: str | None) -> str:
    return f"agent {agent}" if agent else "the tenant"


def _read(file: Path) -> str:
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise Invalid(f"Cannot read {file}: {error.strerror}", code="USAGE") from error
    except UnicodeDecodeError as error:
        raise Invalid(f"{file} is not UTF-8 text", code="USAGE") from error


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"--arguments is no JSON: {error}", code="USAGE") from error
    if not isinstance(found, dict):
        raise Invalid("--arguments must be a JSON object", code="USAGE", field="--arguments")
    return found
