"""`python -m examples.refund.run`: two customers ask for their money, and a person decides.

Starts a `harness dev` in `.demo-refund/`, lets the support agent propose a refund twice, and plays
the person: the first time pays less than was proposed, the second time says no. Then it checks, by
what the bank wrote down, that exactly what was approved was paid, once. Ends with 0 only if so.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from examples.analyst.stack import DemoFailed, Stack, make_folders
from harness_api.client import Client, Run

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
GOAL: Final = "My lamp from order A-1042 came broken. I want my money back."
LESS: Final = 80.0
NO: Final = "already refunded"
_LIMIT_S: Final = 120.0


def support() -> tuple[str, dict[str, Any]]:
    """Read the agent's file."""
    spec = yaml.safe_load((HERE / "support.yaml").read_text(encoding="utf-8"))
    return spec.pop("name"), spec


def set_up(admin: Client) -> str:
    """Make the agent and the policy; return a new key of a person who may approve."""
    name, spec = support()
    admin.agents.apply(name, spec)
    admin.policy.set((HERE / "policy.yaml").read_text(encoding="utf-8"))
    return admin.keys.create("a person", "approver").secret


def proposed(admin: Client) -> Run:
    """Start a run and wait until it waits for a person."""
    run = admin.runs.create("support", GOAL)
    run = admin.runs.wait(run.id, timeout_s=_LIMIT_S)
    if run.status != "waiting_approval":
        raise DemoFailed(f"run {run.id} is {run.status}: {run.error or run.output}")
    return run


def play(admin: Client, person: Client) -> Iterator[Run]:
    """Let two refunds be proposed; pay less the first time, and nothing the second time."""
    for amount_usd in (LESS, None):
        run = proposed(admin)
        (asked,) = person.approvals.list(run_id=run.id)
        shown = person.approvals.get(asked.id)
        print(f"\nrun {run.id} waits for a person, who is shown:")
        print(textwrap.indent((shown.preview or {})["text"], "  "))
        if amount_usd is None:
            person.approvals.deny(asked.id, NO)
            print(f"denied: {NO}")
        else:
            changed = {**shown.arguments, "amount_usd": amount_usd}
            person.approvals.approve(asked.id, shown.digest, arguments=changed)
            print(f"approved, with {amount_usd:.2f} USD")
        run = admin.runs.wait(run.id, timeout_s=_LIMIT_S)
        print(f"{run.status}: {run.output}  [scripted]")
        yield run


def checks(runs: list[Run], refunds: Path) -> Iterator[tuple[bool, str]]:
    """Say what holds, by the runs and by what the bank wrote down."""
    first, second = runs
    paid = [line.split()[:2] for line in refunds.read_text(encoding="utf-8").splitlines()]
    yield [r.status for r in runs] == ["succeeded"] * 2, "both runs went on to their end"
    yield paid == [["A-1042", f"{LESS:.2f}"]], f"what was approved was paid, once: {paid}"
    yield f"{LESS:.2f} USD were paid back" in str(first.output), "the customer hears of the amount"
    yield NO in str(second.output), "the customer hears why not"


def main() -> int:
    """Run from the command line; 0 when everything held, 1 when not."""
    try:
        folders = make_folders(Path(".demo-refund"), keep=False)
    except DemoFailed as error:
        print(error, file=sys.stderr)
        return 1
    refunds = folders.root / "refunds.txt"
    env = {
        "REFUND_FILE": str(refunds),
        "HARNESS_WORKER__TOOLS": '["examples.refund.tools"]',
        "PYTHONPATH": str(ROOT),
    }
    stack = Stack(folders, flower=False, env=env)
    stack.start()
    try:
        key = stack.wait(lambda text: print(f"  {text}"))
        with Client(stack.api_url, key) as admin:
            secret = set_up(admin)
            with Client(stack.api_url, secret) as person:
                found = list(checks(list(play(admin, person)), refunds))
    except (DemoFailed, KeyboardInterrupt) as error:
        print(f"{error}\n{stack.last_words()}", file=sys.stderr)
        return 1
    finally:
        stack.stop()
    print()
    for holds, what in found:
        print(f"{'PASS' if holds else 'FAIL'}  {what}")
    return 0 if all(holds for holds, _ in found) else 1


if __name__ == "__main__":
    sys.exit(main())
