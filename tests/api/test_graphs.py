"""Graphs over HTTP: every fault with its place, and the picture of a definition and of a run."""

from __future__ import annotations

import pytest
import yaml

from harness_common.core.ids import decode
from harness_common.core.message import Message, ToolUse
from harness_common.core.step import NodesDone
from tests.api.test_tools import local

GOOD = """
state: {total: {reduce: add, start: 0}}
nodes:
  list: {kind: tool, tool: look, args: {repo: "${/input/repo}"}}
  each: {kind: map, over: "${/nodes/list/output}", do: {tool: look, args: {n: "${/item}"}},
         set: {total: 1}}
  good: {kind: branch, cases: [{when: {at: /state/total, lt: 3}, to: each, max: 5}], default: end}
  end: {kind: model, prompt: "Sum up ${/nodes/each/output}"}
edges: ["list -> each -> good"]
"""


async def put(api, graph, **more):
    body = yaml.safe_load(graph) if isinstance(graph, str) else graph
    spec = {"kind": "graph", "graph": body} | more
    return await api.post("/v1/agents", json={"name": "g", "spec": spec})


async def test_a_graph_is_kept_as_it_was_written_and_drawn(api):
    made = await put(api, GOOD)
    assert made.status_code == 201, made.text
    assert made.json()["spec"]["graph"]["edges"][0] | {"when": None} == {
        "from": "list", "to": "each", "when": None, "max": None, "at_cap": "fail",
    }  # fmt: skip
    assert made.json()["warnings"] == [
        "no live worker and no tool of the tenant is called 'look'; see `harness tools list`"
    ]
    assert (await put(api, GOOD)).status_code == 200
    graph = (await api.get("/v1/agents/g/graph")).json()
    assert [(n["key"], n["kind"], n["status"]) for n in graph["nodes"]] == [
        ("list", "tool", None), ("each", "map", None), ("good", "branch", None),
        ("end", "model", None),
    ]  # fmt: skip
    assert "flowchart TD" in graph["mermaid"]
    assert 'n2 -.->|"/state/total #lt; 3, max 5"| n1' in graph["mermaid"]
    assert '"good" -> "end" [label="else"];' in graph["dot"]


FAULTS = {
    "unknown node": (
        {"nodes": {"a": {"kind": "tool", "tool": "look"}}, "edges": ["a -> b"]},
        "UNKNOWN_NODE",
        "/graph/edges/0/to",
    ),
    "unreachable": (
        {
            "nodes": {n: {"kind": "tool", "tool": "look"} for n in ("a", "b", "c")},
            "edges": ["a -> b"],
        },
        "UNREACHABLE",
        "/graph/nodes/c",
    ),
    "cycle without cap": (
        {
            "nodes": {n: {"kind": "tool", "tool": "look"} for n in ("a", "b")},
            "edges": ["a -> b -> a"],
        },
        "CYCLE_WITHOUT_CAP",
        "/graph/nodes/a",
    ),
    "cap without cycle": (
        {
            "nodes": {n: {"kind": "tool", "tool": "look"} for n in ("a", "b", "c")},
            "edges": ["a -> b", "a -> c", {"from": "b", "to": "c", "max": 3}],
        },
        "CAP_WITHOUT_CYCLE",
        "/graph/edges/2/max",
    ),
    "type of reducer": (
        {
            "nodes": {"a": {"kind": "tool", "tool": "look"}},
            "state": {"n": {"reduce": "add", "start": []}},
        },
        "REDUCER_TYPE",
        "/graph/state/n/start",
    ),
    "unknown state": (
        {"nodes": {"a": {"kind": "tool", "tool": "look", "set": {"n": 1}}}},
        "UNKNOWN_STATE",
        "/graph/nodes/a/set/n",
    ),
    "template at no node": (
        {
            "nodes": {
                "a": {"kind": "tool", "tool": "look", "args": {"x": [1, "${/nodes/z/output}"]}}
            }
        },
        "POINTS_NOWHERE",
        "/graph/nodes/a/args/x/1",
    ),
    "template at a later node": (
        {
            "nodes": {
                "a": {"kind": "tool", "tool": "look", "args": {"x": "${/nodes/b/output}"}},
                "b": {"kind": "tool", "tool": "look"},
            },
            "edges": ["a -> b"],
        },
        "POINTS_NOWHERE",
        "/graph/nodes/a/args/x",
    ),
    "item outside of a map": (
        {"nodes": {"a": {"kind": "model", "prompt": "${/item}"}}},
        "POINTS_NOWHERE",
        "/graph/nodes/a/prompt",
    ),
    "condition at nothing": (
        {
            "nodes": {
                "a": {
                    "kind": "branch",
                    "cases": [{"when": {"at": "/state/x", "is": 1}, "to": "b"}],
                },
                "b": {"kind": "tool", "tool": "look"},
            },
        },
        "POINTS_NOWHERE",
        "/graph/nodes/a/cases/0/when/at",
    ),
    "in a subgraph": (
        {
            "nodes": {
                "s": {
                    "kind": "subgraph",
                    "graph": {
                        "nodes": {"a": {"kind": "model", "prompt": "${/state/x}"}},
                        "output": "${/nodes/q/output}",
                    },
                }
            }
        },
        "POINTS_NOWHERE",
        "/graph/nodes/s/graph/nodes/a/prompt",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_told_with_its_place(api, fault):
    graph, code, place = FAULTS[fault]
    answer = await put(api, graph)
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    assert problem["code"] == "GRAPH_INVALID"
    assert (code, place) in [(e["code"], e["field"]) for e in problem["errors"]]
    assert problem["detail"].startswith(problem["field"])
    assert (await api.get("/v1/agents/g")).status_code == 404


async def test_a_tool_that_no_live_worker_has_is_a_fault_once_there_are_workers(api, db):
    await local(db, "other")
    problem = (await put(api, GOOD)).json()
    assert [(e["code"], e["field"]) for e in problem["errors"]] == [
        ("UNKNOWN_TOOL", "/graph/nodes/list/tool"),
        ("UNKNOWN_TOOL", "/graph/nodes/each/do/tool"),
    ]
    problem = (await put(api, GOOD, tools=["other"])).json()
    assert "not among the agent's `tools`" in problem["detail"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"kind": "graph"}, "spec"),
        ({"graph": {"nodes": {"a": {"kind": "tool", "tool": "x"}}}}, "spec"),
        ({"kind": "graph", "graph": {"nodes": {"a": {"kind": "tol"}}}}, "spec.graph.nodes.a"),
        (
            {
                "kind": "graph",
                "graph": {"nodes": {"a": {"kind": "tool", "tool": "x"}}, "edges": "a"},
            },
            "spec.graph.edges",
        ),
        (
            {
                "kind": "graph",
                "graph": {
                    "nodes": {"a": {"kind": "branch", "cases": [{"when": {"at": "x"}, "to": "a"}]}}
                },
            },
            "spec.graph.nodes.a.branch.cases.0",
        ),
    ],
)
async def test_what_is_no_graph_is_refused(api, spec, field):
    answer = await api.post("/v1/agents", json={"name": "g", "spec": spec})
    assert answer.status_code == 422
    assert answer.json()["field"].startswith(field), answer.text


async def test_the_picture_of_a_run_shows_how_far_each_node_is(api, play):
    await put(api, GOOD)
    run = (await api.post("/v1/runs", json={"agent": "g", "input": '{"repo": "r"}'})).json()
    run_id = decode("run", run["id"])
    log = {"graph": {"ops": [["begin", "list"]], "calls": [["list", 0]]}}
    asks = Message("assistant", (ToolUse("call_0", "look", {"repo": "r"}),), extra=log)
    await play.step(run_id, NodesDone((), (asks,), calls=1))
    graph = (await api.get(f"/v1/runs/{run['id']}/graph")).json()
    assert graph["run_status"] == "running"
    assert [n["status"] for n in graph["nodes"]] == ["running", "pending", "pending", "pending"]
    assert ":::running" in graph["mermaid"]
    assert graph["state"] == {"total": 0}


async def test_an_agent_that_is_no_graph_has_no_picture(api):
    answer = await api.get("/v1/agents/a/graph")
    assert (answer.status_code, answer.json()["code"]) == (422, "NO_GRAPH")
    assert (await api.get("/v1/agents/zz/graph")).status_code == 404
