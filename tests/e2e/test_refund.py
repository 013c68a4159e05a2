"""The refund that a person approves, on real processes: by the example's one command's own story,
and by hand with the command line as its README tells it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from examples.refund.run import GOAL, HERE, checks, play, set_up
from harness_api.cli import main as cli
from harness_api.client import Client
from tests.e2e.stack import Stack

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_a_refund_is_paid_as_approved_and_not_when_denied(monkeypatch, capsys, tmp_path: Path):
    refunds = tmp_path / "refunds.txt"
    env: Any = {
        "REFUND_FILE": str(refunds),
        "HARNESS_WORKER__TOOLS": '["examples.refund.tools"]',
        "PYTHONPATH": str(ROOT),
    }
    with Stack(processes=1, **env) as stack:
        url = f"http://127.0.0.1:{stack.api_ports[0]}"
        with Client(url, stack.key) as admin:
            secret = set_up(admin)
            with Client(url, secret) as person:
                found = list(checks(list(play(admin, person)), refunds))
            assert [what for holds, what in found if not holds] == []
            assert len(found) == 4
        capsys.readouterr()

        def harness(key: str, *arguments: str, code: int = 0) -> str:
            monkeypatch.setenv("HARNESS_API_URL", url)
            monkeypatch.setenv("HARNESS_API_KEY", key)
            ended = cli.run(list(arguments))
            said = capsys.readouterr()
            assert ended == code, said.err
            return str(said.out + said.err)

        by_hand(harness, stack.key, refunds)


def by_hand(harness: Any, admin: str, refunds: Path) -> None:
    harness(admin, "policy", "set", str(HERE / "policy.yaml"))
    harness(admin, "agents", "apply", str(HERE / "support.yaml"))
    made = harness(admin, "keys", "create", "ann", "--role", "approver")
    (ann,) = re.findall(r"hk_[\w-]+", made)
    submitted = harness(admin, "runs", "submit", "support", GOAL, "--follow", code=1)
    assert "scripted" in submitted
    (approval,) = set(re.findall(r"appr_\w+", submitted))
    assert approval in harness(ann, "approvals", "list")
    shown = harness(ann, "approvals", "show", approval)
    assert "Pay 120.00 USD back to Ann Ito for order A-1042" in shown
    assert "money leaves the house" in shown
    own = harness(admin, "approvals", "approve", approval, "--yes", code=1)
    assert "FOUR_EYES" in own
    before = refunds.read_text()
    harness(
        *(ann, "approvals", "approve", approval, "--set", "amount_usd=75.5", "--yes"),
        *("--reason", "the shade can be replaced"),
    )
    (run,) = set(re.findall(r"run_\w{32}", submitted))
    harness(admin, "runs", "follow", run)
    ended = json.loads(harness(admin, "runs", "show", run, "--json"))
    assert "75.50 USD were paid back for A-1042" in ended["run"]["output"]
    assert refunds.read_text().removeprefix(before).startswith("A-1042 75.50 ")
