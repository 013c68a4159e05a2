"""Graphs in Python: a small builder of the definition that YAML would say. Users import it from
`harness_worker.sdk`.

    from harness_worker.sdk import Graph

    graph = Graph("pr-digest")
    prs = graph.tool("list_prs", args={"repo": "${/input/repo}"})
    details = graph.map(
        "fetch", over=prs.output, tool="get_pr", args={"n": "${/item/number}"}, after=prs
    )
    graph.model("summarise", prompt=f"Sum up {details.output}", after=details)
    print(graph.to_json())  # for `harness agents apply FILE`

Building registers nothing and calls nothing: the result is data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.graph_compile import compiled, unknown_ends
from harness_common.core.errors import Invalid
from harness_common.core.graph_check import faults
from harness_common.core.message import Json

Reduce = Literal["replace", "append", "add", "merge", "union"]


@dataclass(frozen=True, slots=True)
class NodeRef:
    """A node of a graph, to point at and to follow."""

    name: str

    @property
    def output(self) -> str:
        """Return the template of what the node gives."""
        return self.at("output")

    @property
    def status(self) -> str:
        """Return the pointer to `completed`, `failed` or `skipped`, for conditions."""
        return f"/nodes/{self.name}/status"

    def at(self, path: str) -> str:
        """Return the template of a part, such as `output/items/0` or `error/code`."""
        return f"${{/nodes/{self.name}/{path}}}"


After = NodeRef | str | Iterable[NodeRef | str]


def at(pointer: str, **asked: Json) -> dict[str, Json]:
    """Build a condition: `at("/state/n", lt=3)`. Names that Python keeps end with a underscore:
    `at("/state/kind", in_=["a", "b"])`.
    """
    return {"at": pointer} | {name.rstrip("_"): value for name, value in asked.items()}


def case(
    when: Mapping[str, Json],
    to: NodeRef | str,
    *,
    max: int | None = None,
    at_cap: Literal["fail", "go_on"] = "fail",
) -> dict[str, Json]:
    """Build one way out of a branch; with `max` it leads back, so many times at most."""
    back = {} if max is None else {"max": max, "at_cap": at_cap}
    return {"when": dict(when), "to": _name(to)} | back


class Graph:
    """A graph being built. Every method for a node returns its `NodeRef`.

    What the methods take beside their own arguments (`set`, `on_error`, `retry`, `parse`, `model`,
    …) goes into the node as it is: docs/graphs.md lists it. Mistakes are told by `to_spec`.
    """

    def __init__(self, name: str, *, output: Json = None, **spec: Json) -> None:
        self.name = name
        self.output = output
        self._spec = spec
        self._nodes: dict[str, dict[str, Json]] = {}
        self._edges: list[dict[str, Json]] = []
        self._state: dict[str, dict[str, Json]] = {}

    def state(self, name: str, reduce: Reduce = "replace", start: Json = None) -> str:
        """Add a named value of the shared state; returns its template."""
        self._state[name] = {"reduce": reduce, "start": start}
        return f"${{/state/{name}}}"

    def tool(
        self,
        name: str,
        tool: str | None = None,
        *,
        args: Mapping[str, Json] | None = None,
        after: After = (),
        **more: Any,
    ) -> NodeRef:
        """Call a tool, by default the one of the node's own name."""
        return self._add(
            name, "tool", after, {"tool": tool or name, "args": dict(args or {})}, more
        )

    def model(self, name: str, prompt: str, *, after: After = (), **more: Any) -> NodeRef:
        """Ask a model once."""
        return self._add(name, "model", after, {"prompt": prompt}, more)

    def agent(
        self, name: str, agent: str, input: Json = "${/input}", *, after: After = (), **more: Any
    ) -> NodeRef:
        """Let another agent or graph work in a run of its own."""
        return self._add(name, "agent", after, {"agent": agent, "input": input}, more)

    def map(
        self,
        name: str,
        over: Json,
        *,
        after: After = (),
        parallel: int = 8,
        max_items: int = 1_000,
        **do: Any,
    ) -> NodeRef:
        """Make one call for every item of a list: `tool=` with `args=`, `prompt=` or `agent=`."""
        of_node = ("set", "on_error", "retry", "description")
        more: dict[str, Json] = {key: do.pop(key) for key in of_node if key in do}
        body = {"over": over, "do": do, "parallel": parallel, "max_items": max_items}
        return self._add(name, "map", after, body, more)

    def branch(
        self,
        name: str,
        cases: Sequence[Mapping[str, Json]],
        default: NodeRef | str | None = None,
        *,
        after: After = (),
    ) -> NodeRef:
        """Go on with the first `case` whose condition holds, else with the default."""
        body: dict[str, Json] = {"cases": [dict(one) for one in cases]}
        if default is not None:
            body["default"] = _name(default)
        return self._add(name, "branch", after, body, {})

    def wait(
        self, name: str, *, seconds: Json = None, until: Json = None, after: After = ()
    ) -> NodeRef:
        """Wait for a time."""
        given = {"seconds": seconds, "until": until}
        body = {key: value for key, value in given.items() if value is not None}
        return self._add(name, "wait", after, body, {})

    def approval(
        self, name: str, ask: str, *, show: Json = None, after: After = (), **more: Any
    ) -> NodeRef:
        """Ask a person."""
        return self._add(name, "approval", after, {"ask": ask, "show": show}, more)

    def subgraph(
        self, name: str, graph: Graph, input: Json = "${/input}", *, after: After = (), **more: Any
    ) -> NodeRef:
        """Put in another graph, with an input and a state of its own."""
        body = {"graph": graph.definition(), "input": input}
        return self._add(name, "subgraph", after, body, more)

    def edge(
        self,
        source: NodeRef | str,
        target: NodeRef | str,
        *,
        when: Mapping[str, Json] | None = None,
        max: int | None = None,
        at_cap: Literal["fail", "go_on"] = "fail",
    ) -> None:
        """Let one node follow another; with `max` the edge leads back."""
        edge: dict[str, Json] = {"from": _name(source), "to": _name(target)}
        if when is not None:
            edge["when"] = dict(when)
        if max is not None:
            edge |= {"max": max, "at_cap": at_cap}
        self._edges.append(edge)

    def _add(
        self,
        name: str,
        kind: str,
        after: After,
        body: Mapping[str, Json],
        more: Mapping[str, Json],
    ) -> NodeRef:
        if name in self._nodes:
            raise Invalid(f"the graph has a node {name!r} already", code="GRAPH_INVALID")
        self._nodes[name] = {"kind": kind, **body, **more}
        before = [after] if isinstance(after, NodeRef | str) else after
        for one in before:
            self.edge(one, name)
        return NodeRef(name)

    def definition(self) -> dict[str, Json]:
        """Return what stands under `graph` in a definition."""
        out: dict[str, Json] = {"nodes": self._nodes, "edges": self._edges}
        if self._state:
            out["state"] = self._state
        return out if self.output is None else {**out, "output": self.output}

    def to_spec(self) -> dict[str, Json]:
        """Return the agent's definition; raises `Invalid` that lists every fault with its place."""
        spec = {"kind": "graph", **self._spec, "graph": self.definition()}
        try:
            found = AgentSpec.model_validate(spec)
        except ValidationError as error:
            causes = "; ".join(
                f"/{'/'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:10]
            )
            raise Invalid(f"graph {self.name}: {causes}", code="GRAPH_INVALID") from error
        assert found.graph is not None
        wrong = [f"{place}: there is no node {name!r}" for name, place in unknown_ends(found.graph)]
        wrong = wrong or [fault.told for fault in faults(compiled(found.graph))]
        if wrong:
            raise Invalid(f"graph {self.name}: {'; '.join(wrong)}", code="GRAPH_INVALID")
        return spec

    def to_json(self) -> str:
        """Return the file for `harness agents apply`."""
        agent = {"name": self.name, "spec": self.to_spec()}
        return json.dumps(agent, indent=2, ensure_ascii=False)


def _name(node: NodeRef | str) -> str:
    return node.name if isinstance(node, NodeRef) else node
