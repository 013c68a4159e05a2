"""`harness agents graph` and `harness runs graph`: pictures, a table, JSON; and faults."""

from __future__ import annotations

import json

from harness_api.cli.narrate import Narrator
from harness_api.client import Event
from tests.fakes.harness_server import AT, Answer
from tests.unit.test_cli import harness, server

__all__ = ["harness", "server"]

RUN = "run_01900000000070008000000000000001"
GRAPH = {
    "agent": {"name": "g", "version": 2},
    "nodes": [
        {"key": "a", "kind": "map", "place": "/graph/nodes/a", "status": "failed", "visit": 1,
         "done": 3, "of": 4, "error": {"code": "BAD", "message": "no"}},
    ],
    "edges": [],
    "mermaid": "flowchart TD\n",
    "dot": "digraph graph_run {\n}\n",
}  # fmt: skip


def test_the_picture_of_an_agent(server, harness):
    server.on("GET /v1/agents/g/graph", Answer(body=GRAPH))
    assert harness("agents", "graph", "g").out == GRAPH["mermaid"]
    done = harness("agents", "graph", "g", "--version", "1", "--format", "dot")
    assert (done.code, done.out) == (0, GRAPH["dot"])
    assert server.seen[-1].query == {"version": ["1"]}


def test_the_picture_of_a_run_as_a_table_and_as_json(server, harness):
    server.on(f"GET /v1/runs/{RUN}/graph", Answer(body=GRAPH | {"run_id": RUN, "state": {"n": 1}}))
    table = harness("runs", "graph", RUN, "-f", "table").out
    assert table.splitlines()[-1].split() == ["a", "map", "failed", "1", "3/4", "BAD"]
    found = json.loads(harness("runs", "graph", RUN, "--json").out)
    assert found["state"] == {"n": 1}
    assert found["nodes"][0]["done"] == 3


def test_every_fault_of_a_graph_is_told(server, harness, tmp_path):
    faults = [
        {"field": "/graph/nodes/a", "code": "UNREACHABLE", "message": "/graph/nodes/a: one"},
        {"field": "/graph/nodes/b", "code": "UNREACHABLE", "message": "/graph/nodes/b: two"},
    ]
    problem = {
        "code": "GRAPH_INVALID", "status": 422, "title": "x", "errors": faults,
        "field": "/graph/nodes/a", "detail": "/graph/nodes/a: one (and 1 more fault)",
    }  # fmt: skip
    server.on("POST /v1/agents", Answer(status=422, body=problem))
    file = tmp_path / "g.yaml"
    file.write_text("kind: graph\ngraph: {nodes: {}}\n", encoding="utf-8")
    done = harness("agents", "apply", str(file))
    assert done.code == 1
    assert "/graph/nodes/a: one" in done.err
    assert "  /graph/nodes/b: two" in done.err


def test_follow_says_what_becomes_of_nodes():
    told = Narrator()
    for kind, payload, expected in (
        ("started", {"node": "a", "items": 3}, "node   a  begins  3 items"),
        ("progress", {"node": "a", "done": 1, "of": 3}, "node   a  1 of 3 items"),
        (
            "retried",
            {"node": "a", "item": 2, "error": {"code": "X", "message": "no"}},
            "node   a item 2  failed (X: no), is tried again",
        ),
        ("completed", {"node": "a", "visit": 2}, "node   a (visit 2)  completed"),
        ("skipped", {"node": "s/b"}, "node   s/b  skipped"),
    ):
        event = Event.model_validate(
            {"seq": 1, "type": f"node.{kind}", "at": AT, "payload": payload}
        )
        assert told.line(event) == expected
