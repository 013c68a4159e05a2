"""The pull-request digest on real processes: a worker dies in the middle of its maps, and the
server's own record says that no finished part was asked for again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.pr_digest.graph import DIGEST, build
from examples.pr_digest.run import KILL_AFTER, REPO, checks, kill_in_the_middle
from examples.pr_digest.server import RECORDED, RecordedServer
from harness_api.client import Client
from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.graph_compile import compiled
from tests.e2e.stack import Stack

ROOT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_killed_worker_costs_the_digest_no_finished_part(tmp_path: Path) -> None:
    record = tmp_path / "requests.txt"
    server = RecordedServer(0, record, KILL_AFTER)
    server.start()
    env: Any = {
        "PR_SERVER": server.url,
        "HARNESS_WORKER__TOOLS": '["examples.pr_digest.tools"]',
        "PYTHONPATH": str(ROOT),
    }
    try:
        with Stack(processes=2, **env) as stack:
            url = f"http://127.0.0.1:{stack.api_ports[0]}"
            with Client(url, stack.key) as client:
                client.agents.apply("pr-digest", build().to_spec())
                run = client.runs.create("pr-digest", json.dumps({"repo": REPO}))
                killed = kill_in_the_middle(client, run.id, server)
                run = client.runs.wait(run.id, timeout_s=90)
                found = list(checks(client, run, killed, record))
                picture = client.runs.graph(run.id)
    finally:
        server.shutdown()
    assert [what for holds, what in found if not holds] == []
    assert len(found) == 6
    assert run.output == DIGEST
    assert run.scripted
    assert {n.key: (n.status, n.done, n.of) for n in picture.nodes} == {
        "list_prs": ("completed", None, None),
        "fetch_details": ("completed", 12, 12),
        "fetch_checks": ("completed", 12, 12),
        "summarise": ("completed", None, None),
        "report": ("completed", None, None),
    }


def test_the_definition_by_hand_is_the_one_that_the_builder_gives():
    text = (ROOT / "examples" / "pr_digest" / "pr-digest.yaml").read_text(encoding="utf-8")
    by_hand = yaml.safe_load(text)
    assert by_hand.pop("name") == "pr-digest"
    one, two = (AgentSpec.model_validate(spec) for spec in (by_hand, build().to_spec()))
    assert one.graph is not None
    assert two.graph is not None
    assert compiled(one.graph).nodes == compiled(two.graph).nodes
    ends = [{(e.source, e.target) for e in spec.graph.edges} for spec in (one, two) if spec.graph]
    assert ends[0] == ends[1]
    empty = {"graph": None, "kind": "agent"}
    assert one.model_copy(update=empty) == two.model_copy(update=empty)


def test_the_scripted_digest_says_what_was_recorded():
    pulls = RECORDED["pulls"]
    failing = [p["number"] for p in pulls if p["checks"] == "failing"]
    assert failing == [103, 106, 112]
    assert all(f"#{number}" in DIGEST for number in failing)
    assert f"{len(pulls)} open pull requests in {RECORDED['repo']}" in DIGEST
    security = [p["number"] for p in pulls if p["label"] == "security"]
    assert security == [108, 111]
    assert max(pulls, key=lambda p: p["additions"])["number"] == 112
    assert max(pulls, key=lambda p: p["deletions"])["deletions"] == 840
