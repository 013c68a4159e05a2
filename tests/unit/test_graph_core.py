"""Graphs without I/O: readiness, reducers, caps, failures, and that nothing depends on who was
first.
"""

from __future__ import annotations

import json
import random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_common.contracts.graph import GraphSpec
from harness_common.core.graph import MAX_CALLS, Channel, Edge, Graph, Node, Work, make_graph
from harness_common.core.graph_check import faults
from harness_common.core.graph_log import (
    asked_in,
    follow_up,
    plan,
    replay,
    results_message,
    take,
)
from harness_common.core.graph_progress import Progress
from harness_common.core.graph_values import BadValue, fill, holds, reduced
from harness_common.core.message import user
from harness_worker.steps.node_progress import KeptProgress
from tests.unit.graphs import NOW, Played, graph_of, outcome


def echo(name: str, args: dict[str, Any]) -> Any:
    return args


def fails(name: str, args: dict[str, Any]) -> Any:
    raise ValueError("no")


# Any order of completions.


@st.composite
def dags(draw: st.DrawFn) -> Graph:
    """Draw a graph without cycles whose nodes write to channels that do not mind the order."""
    n = draw(st.integers(2, 9))
    channels = {
        "sum": Channel("add", 0), "all": Channel("union", []), "by": Channel("merge", {}),
    }  # fmt: skip
    nodes, edges = [], []
    for i in range(n):
        writes = (("sum", i + 1), ("all", [f"n{i % 3}"]), ("by", {f"n{i}": "${/output/i}"}))
        work = Work("look", {"i": i}, is_tool=True)
        goes_on = draw(st.booleans())
        nodes.append(
            Node(f"n{i}", f"n{i}", "", "tool", f"/{i}", work, writes=writes, goes_on=goes_on)
        )
        for before in range(i):
            if draw(st.integers(0, 2)) == 0:
                when = draw(
                    st.sampled_from([None, {"at": f"/nodes/n{before}/status", "is": "completed"}])
                )
                edges.append(Edge(f"n{before}", f"n{i}", when, place=f"/{before}-{i}"))
    return make_graph(nodes, edges, {"": channels})


def run_in_any_order(graph: Graph, seed: int, failing: set[str]) -> Progress:
    """Complete whatever is ready, one node at a time, in an order of the seed."""
    rng, progress = random.Random(seed), Progress(graph, None)
    flying: list[str] = []
    while True:
        for key in progress.ready():
            progress.begin(key)
            progress.called(key, 0)
            flying.append(key)
        if not flying:
            return progress
        key = flying.pop(rng.randrange(len(flying)))
        error = "BAD" if key in failing and graph.nodes[key].goes_on else None
        progress.result(key, 0, json.dumps({"i": int(key[1:])}), error)


@given(dags(), st.integers(0, 10**6), st.integers(0, 10**6), st.sets(st.integers(0, 8)))
@settings(max_examples=80, deadline=None)
def test_any_order_of_completions_gives_the_same_state(graph, a, b, failing):
    names = {f"n{i}" for i in failing}
    one, two = run_in_any_order(graph, a, names), run_in_any_order(graph, b, names)
    assert one.state == two.state
    assert {k: (n.status, n.output) for k, n in one.nodes.items()} == {
        k: (n.status, n.output) for k, n in two.nodes.items()
    }
    assert all(n.status in {"completed", "failed", "skipped"} for n in one.nodes.values())
    done = [int(k[1:]) for k, n in one.nodes.items() if n.status == "completed"]
    assert one.state[""]["sum"] == sum(i + 1 for i in done)
    assert one.state[""]["by"] == {f"n{i}": i for i in done}


@given(dags(), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_record_alone_leads_to_the_same_progress(graph, seed):
    """Played step by step, each planned anew from the messages, a graph ends as if in one go."""
    played = Played(graph, "x", echo).play()
    whole = run_in_any_order(graph, seed, set())
    assert played.progress().state == whole.state
    assert played.made is not None
    assert played.made.error is None


# What is ready.

DIAMOND = """
nodes:
  a: {kind: tool, tool: t}
  b: {kind: tool, tool: t}
  c: {kind: tool, tool: t}
  d: {kind: tool, tool: t}
edges: ["a -> b -> d", {from: a, to: c, when: {at: /input, is: both}}, "c -> d"]
"""


@pytest.mark.parametrize(("said", "steps"), [("both", [["a"], ["b", "c"], ["d"]]),
                                             ("one", [["a"], ["b"], ["d"]])])  # fmt: skip
def test_a_node_waits_for_every_edge_that_may_still_be_taken(said, steps):
    played = Played(graph_of(DIAMOND), said, echo).play()
    assert played.steps == steps


def test_a_node_that_nothing_leads_to_any_more_is_skipped_with_what_follows_it_alone():
    played = Played(graph_of("""
nodes:
  a: {kind: tool, tool: t}
  nope: {kind: tool, tool: t}
  nope2: {kind: tool, tool: t}
  end: {kind: tool, tool: t}
edges: [{from: a, to: nope, when: {at: /input, is: z}}, "nope -> nope2 -> end", "a -> end"]
"""), "x", echo).play()  # fmt: skip
    assert played.steps == [["a"], ["end"]]
    skipped = [p["node"] for e, p in played.events if e == "node.skipped"]
    assert skipped == ["nope", "nope2"]


def test_a_branch_takes_the_first_case_that_holds():
    text = """
nodes:
  b: {kind: branch, cases: [{when: {at: /input, gt: 10}, to: big},
                            {when: {at: /input, gt: 5}, to: mid}], default: small}
  big: {kind: tool, tool: t}
  mid: {kind: tool, tool: t}
  small: {kind: tool, tool: t}
"""
    for said, taken in {"20": "big", "7": "mid", "1": "small", "x": "small"}.items():
        assert Played(graph_of(text), said, echo).play().steps == [[taken]]


def test_what_may_take_long_begins_when_nothing_else_can_be_done():
    played = Played(graph_of("""
nodes:
  ask: {kind: approval, ask: "Go?"}
  rest: {kind: wait, seconds: 60}
  a: {kind: tool, tool: t}
  b: {kind: tool, tool: t}
  end: {kind: tool, tool: t}
edges: ["a -> b -> end", "ask -> end", "rest -> end"]
"""), "x", lambda name, args: {"approved": True} if "ask" in args else args).play()  # fmt: skip
    assert played.steps == [["a"], ["b"], ["ask", "rest"], ["end"]]
    asked = next(m for m in played.messages if len(m.tool_uses()) == 2).tool_uses()
    assert asked[1].input == {"until": "2030-01-01T00:01:00+00:00"}  # since its turn had come


# Cycles.

LOOP = """
state: {n: {reduce: add, start: 0}}
nodes:
  try: {kind: tool, tool: t, set: {n: 1}}
  check: {kind: branch, cases: [{when: {at: /state/n, lt: %d}, to: try, max: 3, at_cap: %s}],
          default: end}
  end: {kind: tool, tool: t}
edges: ["try -> check"]
output: "${/state/n}"
"""


def test_a_cycle_goes_round_while_its_condition_holds():
    played = Played(graph_of(LOOP % (3, "fail")), "x", echo).play()
    assert played.steps == [["try"], ["try"], ["try"], ["end"]]
    assert played.made is not None
    assert played.made.output == "3"
    visits = [p.get("visit", 1) for e, p in played.events if e == "node.started"]
    assert visits == [1, 2, 3, 1]


def test_a_cycle_ends_at_its_cap():
    played = Played(graph_of(LOOP % (99, "fail")), "x", echo).play()
    assert played.steps == [["try"]] * 4
    assert played.made is not None
    assert played.made.error["code"] == "NODE_LOOP_CAP"
    again = played.progress()
    assert plan(again, NOW).calls == 1  # a retry goes round once more


def test_a_cycle_may_go_on_without_its_edge_at_its_cap():
    played = Played(graph_of(LOOP % (99, "go_on")), "x", echo).play()
    assert played.steps == [*[["try"]] * 4, ["end"]]


# Failures.


def test_a_failed_call_is_made_again_so_often_and_then_ends_the_run():
    graph = graph_of("nodes: {a: {kind: tool, tool: t, retry: {times: 2, backoff_s: 10}}}")
    played = Played(graph, "x", fails).play()
    assert played.steps == [["a"]] * 3
    assert played.made is not None
    assert played.made.error["code"] == "ValueError"
    after = [(m.extra or {}).get("graph", {}).get("after") for m in played.messages]
    assert [a for a in after if a] == [
        {"0": "2030-01-01T00:00:10+00:00"},
        {"0": "2030-01-01T00:00:20+00:00"},
    ]


def test_two_failures_of_one_step_are_both_tried_again_by_a_retry():
    text = """
nodes:
  each: {kind: map, over: [0, 1, 2, 3], do: {tool: t, args: {i: "${/item}"}}}
"""
    bad = {1, 2}

    def answer(name: str, args: dict[str, Any]) -> Any:
        if args["i"] in bad:
            raise ValueError("no")
        return args["i"]

    played = Played(graph_of(text), "x", answer).play()
    assert played.made is not None
    assert played.made.error["detail"]["item"] == 1
    bad.clear()
    played.play()
    assert played.steps == [["each[0]", "each[1]", "each[2]", "each[3]"], ["each[1]", "each[2]"]]
    assert played.made.output == "[0, 1, 2, 3]"


def test_a_map_may_go_on_without_the_items_that_failed():
    def answer(name: str, args: dict[str, Any]) -> Any:
        if args.get("i") == 1:
            raise ValueError("no")
        return args

    played = Played(graph_of("""
nodes:
  each: {kind: map, over: [0, 1], on_error: go_on, do: {tool: t, args: {i: "${/item}"}}}
  end: {kind: tool, tool: t, args: {x: "${/nodes/each/output}", e: "${/nodes/each/error/failed}"}}
edges: ["each -> end"]
"""), "x", answer).play()  # fmt: skip
    assert played.made is not None
    assert json.loads(played.made.output or "") == {"x": [{"i": 0}, None], "e": 1}


@pytest.mark.parametrize(
    ("node", "code"),
    [
        ('{kind: tool, tool: t, args: {x: "${/input/no}"}}', "NODE_TEMPLATE"),
        ('{kind: map, over: "${/input}", do: {tool: t}}', "NODE_TEMPLATE"),
        ("{kind: map, over: [1, 2], max_items: 1, do: {tool: t}}", "NODE_TEMPLATE"),
        ('{kind: wait, seconds: "${/input}"}', "NODE_TEMPLATE"),
        ('{kind: tool, tool: t, set: {n: "${/output}"}}', "NODE_STATE"),
        ("{kind: tool, tool: t, parse: json}", "NODE_OUTPUT"),
    ],
)
def test_what_does_not_fit_at_run_time_fails_its_node_with_its_place(node, code):
    graph = graph_of("state: {n: {reduce: add, start: 0}}\nnodes:\n  a: " + node)
    played = Played(graph, "text", lambda name, args: "text").play()
    assert played.made is not None
    assert played.made.error["code"] == code
    assert played.made.error["detail"]["place"] == "/graph/nodes/a"


def test_a_step_has_a_bounded_number_of_calls():
    text = "nodes:\n  a: {kind: map, over: %s, parallel: 100, do: {tool: t}}"
    played = Played(graph_of(text % list(range(150))), "x", echo).play()
    assert [len(step) for step in played.steps] == [MAX_CALLS, MAX_CALLS, 150 - 2 * MAX_CALLS]


# Subgraphs.


def test_a_subgraph_has_an_input_and_a_state_of_its_own():
    text = """
state: {n: {reduce: add, start: 100}}
nodes:
  first: {kind: tool, tool: t, args: {v: 5}}
  inner:
    kind: subgraph
    input: {v: "${/nodes/first/output/v}"}
    set: {n: "${/output}"}
    graph:
      state: {n: {reduce: add, start: 0}}
      nodes:
        a: {kind: tool, tool: t, args: {v: "${/input/v}"}, set: {n: "${/output/v}"}}
        b: {kind: tool, tool: t, args: {v: 1}, set: {n: "${/output/v}"}}
      edges: ["a -> b"]
      output: "${/state/n}"
  last: {kind: tool, tool: t, args: {v: "${/nodes/inner/output}", n: "${/state/n}"}}
edges: ["first -> inner -> last"]
"""
    graph = graph_of(text)
    assert faults(graph) == []
    played = Played(graph, "x", echo).play()
    assert played.steps == [["first"], ["inner/a"], ["inner/b"], ["last"]]
    assert played.made is not None
    assert json.loads(played.made.output or "") == {"v": 6, "n": 106}


# Values.


def test_templates_keep_types_and_are_never_read_twice():
    root = {"a": {"b": [1, {"c": "x"}]}, "evil": "${/a}"}
    assert fill("${/a/b/0}", root) == 1
    assert fill({"k": ["${/a/b/1/c}", "n=${/a/b/0} $${/a}"]}, root) == {"k": ["x", "n=1 ${/a}"]}
    assert fill("${/evil}!", root) == "${/a}!"
    assert fill("${/none?}", root) is None
    assert fill("is ${/none?}.", root) == "is ."
    with pytest.raises(BadValue, match="/none points at nothing"):
        fill("${/none}", root)


def test_no_value_grows_without_a_bound():
    big = {"x": "a" * 1_500_000}
    with pytest.raises(BadValue, match="more than"):
        fill("${/x}${/x}", big)
    shared: list[Any] = ["x" * 1000]
    for _ in range(30):
        shared = [shared, shared]
    with pytest.raises(BadValue, match="more than"):
        reduced("append", [], shared)


@pytest.mark.parametrize(
    ("condition", "true"),
    [
        ({"at": "/n", "is": 3}, True),
        ({"at": "/n", "is": 3.0}, True),
        ({"at": "/t", "is": 1}, False),
        ({"at": "/n", "gt": 2, "lt": 4}, True),
        ({"at": "/n", "gt": "2"}, False),
        ({"at": "/s", "lt": "b"}, True),
        ({"at": "/l", "contains": "x"}, True),
        ({"at": "/s", "in": ["a", "b"]}, True),
        ({"at": "/s", "in": "${/l}"}, False),
        ({"at": "/no", "exists": False}, True),
        ({"at": "/no", "is": None}, False),
        ({"at": "/no", "is_not": 1}, True),
        ({"at": "/l", "empty": False}, True),
        ({"not": {"at": "/n", "ge": 3}}, False),
        ({"all": [{"at": "/n", "le": 3}, {"any": [{"at": "/s", "is": "a"}]}]}, True),
    ],
)
def test_conditions(condition, true):
    root = {"n": 3, "t": True, "s": "a", "l": ["x"]}
    assert holds(condition, root) is true


@pytest.mark.parametrize(
    ("reducer", "new"), [("add", "x"), ("add", True), ("merge", [1]), ("merge", None)]
)
def test_a_reducer_refuses_what_does_not_fit(reducer, new):
    with pytest.raises(BadValue, match=reducer):
        reduced(reducer, None, new)


def test_a_definition_is_the_same_graph_in_any_order():
    """A database gives the keys of an object back in an order of its own."""
    names = ["list", "a", "zz", "b"]
    edges = "edges: ['list -> zz -> b', 'a -> b']"
    orders = [names, names[::-1], sorted(names)]
    graphs = [
        graph_of("nodes:\n" + "".join(f"  {n}: {{kind: tool, tool: t}}\n" for n in o) + edges)
        for o in orders
    ]
    assert [list(g.nodes) for g in graphs] == [["a", "list", "zz", "b"]] * 3


def test_a_kept_progress_is_good_for_its_own_record_alone():
    """Whoever made the last step need not follow the record again; a record that went elsewhere is
    followed from its beginning.
    """
    graph = graph_of(LOOP % (3, "fail"))
    played = Played(graph, "x", echo)
    played.play(2)
    kept, key = KeptProgress(), (UUID(int=1), UUID(int=2))
    mine = played.progress()
    before, added = len(played.messages) - 2, tuple(played.messages[-2:])
    kept.keep(key, before, added, mine)
    assert kept.take(key, graph, played.messages, ["hello"]) is mine
    assert mine.env("")["said"] == ["hello"]
    assert kept.take(key, graph, played.messages, ()) is not mine  # it was taken
    for messages in (played.messages[:-1], [*played.messages[:-1], user("other")]):
        kept.keep(key, before, added, mine)
        other = kept.take(key, graph, messages, ())
        assert other is not mine
        assert other.state == replay(graph, messages).state


def test_names_of_calls_that_only_graphs_make_are_no_tools():
    with pytest.raises(ValueError, match="graph__"):
        graph_of("nodes: {a: {kind: tool, tool: graph__model}}")


def test_subgraphs_nest_only_so_deep():
    spec: dict[str, Any] = {"nodes": {"a": {"kind": "tool", "tool": "t"}}}
    for _ in range(8):
        spec = {"nodes": {"a": {"kind": "subgraph", "graph": spec}}}
    with pytest.raises(ValueError, match="nest at most 8 deep"):
        GraphSpec.model_validate(spec)


SAID = """
nodes:
  first: {kind: tool, tool: t}
  asked: {kind: branch, cases: [{when: {at: /said, empty: false}, to: other}], default: usual}
  usual: {kind: tool, tool: t}
  other: {kind: tool, tool: t}
  last: {kind: tool, tool: t, args: {said: "${/said}"}}
edges: ["first -> asked", "usual -> last", "other -> last"]
"""


@pytest.mark.parametrize(("known", "way"), [([], "usual"), (["hello"], "other")])
def test_what_is_said_later_changes_nothing_that_is_decided(known, way):
    """A worker that follows the record later decides as the one did that made it."""
    graph = graph_of(SAID)
    messages = [user("x")]
    messages.append(plan(replay(graph, messages, known), NOW).message)
    progress = replay(graph, messages, known)
    results = [outcome(0, "t", "{}")]
    take(progress, asked_in(messages), results)
    messages += [results_message(results), follow_up(progress, NOW).message]
    assert [a.node for a in asked_in(messages)] == [way]
    later = replay(graph, messages, [*known, "and more"])
    statuses = {key: node.status for key, node in later.nodes.items()}
    assert statuses == {key: node.status for key, node in progress.nodes.items()}
    assert statuses[way] == "running"
    take(later, asked_in(messages), results)
    made = follow_up(later, NOW).message
    assert made.tool_uses()[0].input == {"said": [*known, "and more"]}
