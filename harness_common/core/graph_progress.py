"""How far a graph run is: what is ready, and what the outcome of a node does to nodes and state.

A `Progress` is never stored. It is what follows from the graph, the input and the run's own record
(`core.graph_log`), so that a fork, a retry and a replay from any checkpoint need nothing else.

A node is ready when every edge to it is decided and one of them is taken; when none is, it is
skipped. An edge that leads back starts its target and all that follows it anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from harness_common.core import events as ev
from harness_common.core.events import Event
from harness_common.core.graph import INSTANT, Edge, Graph, Node
from harness_common.core.graph_values import BadValue, as_text, fill, holds, parsed, reduced
from harness_common.core.message import Json

PENDING: Final = "pending"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
NOT_MADE: Final = frozenset({"TOKEN_BUDGET_EXCEEDED", "COST_BUDGET_EXCEEDED"})
"""Codes of calls that a run's budget did not allow: no failure of a node, and the end of the run
whatever its node says.
"""


@dataclass(slots=True)
class NodeState:
    """Where one node stands in its present visit."""

    status: str = PENDING
    visit: int = 0
    """How often its turn has come."""
    output: Json = None
    error: Json = None
    items: list[Json] | None = None
    """The list of a map, as it was when its turn came; one None for a node of one call."""
    started: set[int] = field(default_factory=set)
    """Items whose call was made, or could not be."""
    flying: set[int] = field(default_factory=set)
    """Items whose call is under way."""
    again: list[int] = field(default_factory=list)
    """Items whose call is to be made again."""
    failures: dict[int, int] = field(default_factory=dict)
    results: dict[int, Json] = field(default_factory=dict)
    errors: dict[int, Json] = field(default_factory=dict)
    due: str | None = None
    """When a wait is over that was ready before it could begin."""

    @property
    def done(self) -> int:
        """Count the items that are over."""
        return len(self.results) + len(self.errors)


class Progress:
    """The state of one graph run. What happens to it is told in `events`, for whoever wants it."""

    def __init__(self, graph: Graph, input_: Json, said: tuple[str, ...] = ()) -> None:
        self.graph = graph
        self.nodes = {key: NodeState() for key in graph.nodes}
        self.inputs: dict[str, Json] = {"": input_}
        self.state = {scope: self._fresh(scope) for scope in graph.channels}
        self.taken: dict[int, bool] = {}
        """For each decided edge whether it is taken."""
        self.loops: dict[int, int] = {}
        """How often each edge that leads back was taken."""
        self.fatal: list[dict[str, Json]] = []
        """The failures that end the run."""
        self.events: list[Event] = []
        self.said = list(said)
        self._forced: set[str] = set()
        self.settle()

    def _fresh(self, scope: str) -> dict[str, Json]:
        return {name: one.start for name, one in self.graph.channels[scope].items()}

    # What templates and conditions see.

    def env(self, scope: str, **more: Json) -> dict[str, Json]:
        """Return what pointers lead into, within a scope."""
        return {
            "input": self.inputs.get(scope),
            "state": self.state[scope],
            "said": self.said,
            "nodes": {n.name: self._shown(n) for n in self._named(scope)},
            **more,
        }

    def _named(self, scope: str) -> Iterator[Node]:
        """List the nodes of a scope; of a subgraph the node where it is left, which has its
        output.
        """
        return (n for n in self.graph.nodes.values() if n.scope == scope and n.kind != "enter")

    def _shown(self, node: Node) -> Json:
        one = self.nodes[node.key]
        shown = {"status": one.status, "output": one.output, "error": one.error}
        return shown | {"visit": one.visit}

    # What is ready.

    def standing(self, key: str) -> str:
        """Tell whether a pending node is `ready`, `dead` (to be skipped) or `blocked`."""
        into = self.graph.into[key]
        if not into or key in self._forced:
            return "ready"
        decided = [self.taken.get(number) for number in into]
        if None in decided:
            return "blocked"
        return "ready" if True in decided else "dead"

    def ready(self) -> list[str]:
        """List the nodes whose turn has come and that have a call to make."""
        if self.fatal:
            return []
        return [
            key
            for key, one in self.nodes.items()
            if one.status == PENDING and self.standing(key) == "ready"
        ]

    def settle(self) -> None:
        """Skip what nothing leads to any more, and pass through the nodes that call nothing."""
        moved = True
        while moved and not self.fatal:
            moved = False
            for key, one in self.nodes.items():
                if one.status != PENDING or self.fatal:
                    continue
                standing = self.standing(key)
                if standing == "dead":
                    self._skip(key)
                elif standing == "ready" and self.graph.nodes[key].kind in INSTANT:
                    self._pass(self.graph.nodes[key])
                else:
                    continue
                moved = True

    def _skip(self, key: str) -> None:
        self.nodes[key].status = SKIPPED
        self._tell(ev.NODE_SKIPPED, key)
        for number in self.graph.out_of[key]:
            if self.graph.edges[number].most is None:
                self.taken[number] = False

    def _pass(self, node: Node) -> None:
        """Go through a branch, or into or out of a subgraph."""
        self._begun(node.key, [])
        try:
            if node.kind == "enter":
                self.inputs[node.key] = fill(node.value, self.env(node.scope))
                self.state[node.key] = self._fresh(node.key)
                self._complete(node, None)
            elif node.kind == "leave":
                self._complete(node, self.output_of(node.key.removesuffix("/*"), node.value))
            else:
                self._complete(node, None)
        except BadValue as error:
            self._fail(node, 0, _error("NODE_TEMPLATE", f"{node.place}: {error}"))

    def output_of(self, scope: str, template: Json) -> Json:
        """Return what a graph or subgraph gives: its template, or what its last nodes gave."""
        if template is not None:
            return fill(template, self.env(scope))
        last = self.graph.last(scope)
        given = {n.name: self.nodes[n.key].output for n in last}
        if len(last) == 1:
            return given[last[0].name]
        return {name: one for name, one in given.items() if one is not None} or None

    # What happens to a node.

    def _begun(self, key: str, items: list[Json]) -> NodeState:
        before = self.nodes[key]
        one = NodeState(RUNNING, before.visit + 1, items=items, due=before.due)
        self.nodes[key] = one
        self._forced.discard(key)
        return one

    def begin(self, key: str) -> None:
        """Take a ready node's turn: a map's list is looked up now, and does not change any more."""
        node = self.graph.nodes[key]
        if not node.is_map:
            self._begun(key, [None])
            self._tell(ev.NODE_STARTED, key)
            return
        one = self._begun(key, [])
        try:
            found = fill(node.over, self.env(node.scope))
            if not isinstance(found, list):
                raise BadValue("it is no list")
            if len(found) > node.max_items:
                raise BadValue(f"it has {len(found)} items, more than max_items {node.max_items}")
        except BadValue as error:
            self._tell(ev.NODE_STARTED, key)
            self._fail(node, 0, _error("NODE_TEMPLATE", f"{node.place}/over: {error}"))
            self.settle()
            return
        one.items = found
        self._tell(ev.NODE_STARTED, key, items=len(found))
        if not found:
            self._complete(node, [])
            self.settle()

    def due(self, key: str) -> list[int]:
        """List the items of a running node whose call is to be made: first those to be made again,
        then the next ones.
        """
        one = self.nodes[key]
        if one.status != RUNNING or self.fatal:
            return []
        fresh = (i for i in range(len(one.items or ())) if i not in one.started)
        return [*one.again, *fresh]

    def called(self, key: str, item: int) -> None:
        """Note that the call of an item is under way."""
        one = self.nodes[key]
        if item in one.again:
            one.again.remove(item)
        one.started.add(item)
        one.flying.add(item)

    def arguments(self, key: str, item: int) -> Json:
        """Return the arguments of a node's call; raises `BadValue`."""
        node, one = self.graph.nodes[key], self.nodes[key]
        assert node.work is not None
        env = self.env(node.scope)
        if node.is_map and one.items is not None:
            env |= {"item": one.items[item], "index": item}
        filled = fill(node.work.arguments, env)
        for name in node.work.texts:
            if name in filled and not isinstance(filled[name], str):
                filled[name] = as_text(filled[name])
        return filled

    def result(self, key: str, item: int, text: str, error_type: str | None) -> None:
        """Take the outcome of a call: what it gave as text, or how it failed."""
        one = self.nodes.get(key)
        if one is None or item not in one.flying:
            return  # the definition has changed since: a fork with a newer version of the graph
        one.flying.discard(item)
        node = self.graph.nodes[key]
        assert node.work is not None
        if error_type is not None:
            self.fail(key, item, _error(error_type, text))
            return
        try:
            value = parsed(text, node.work.parse)
        except BadValue as error:
            self.fail(key, item, _error("NODE_OUTPUT", str(error)))
            return
        one.results[item] = value
        self._if_whole(node)

    def fail(self, key: str, item: int, error: dict[str, Json]) -> None:
        """Take a failed call: it is made again while its node's rule says so."""
        node, one = self.graph.nodes[key], self.nodes[key]
        one.flying.discard(item)
        one.started.add(item)
        if error["code"] in NOT_MADE:
            self._end(node, item, error)
            return
        failures = one.failures[item] = one.failures.get(item, 0) + 1
        if failures <= node.again.times:
            one.again.append(item)
            shown = _item(node, item) | {"failures": failures, "error": error}
            self._tell(ev.NODE_RETRIED, key, **shown)
            return
        if node.is_map and node.goes_on:
            one.errors[item] = error
            self._if_whole(node)
            return
        self._fail(node, item, error)
        self.settle()

    def _if_whole(self, node: Node) -> None:
        """Complete a node all of whose calls are over."""
        one = self.nodes[node.key]
        total = len(one.items or ())
        if one.done < total or one.status != RUNNING:
            return
        if node.is_map:
            output: Json = [one.results.get(i) for i in range(total)]
            if one.errors:
                one.error = {"failed": len(one.errors), "items": _by_text(one.errors)}
        else:
            output = one.results[0]
        try:
            self._complete(node, output)
        except BadValue as error:
            self._fail(node, 0, _error("NODE_STATE", f"{node.place}: {error}"))
        self.settle()

    def _complete(self, node: Node, output: Json) -> None:
        """End a node well: what it gives to the state, and which edges are taken."""
        one = self.nodes[node.key]
        env = self.env(node.scope, output=output, error=one.error)
        changed = dict(self.state[node.scope])
        for name, template in node.writes:
            channel = self.graph.channels[node.scope][name]
            changed[name] = reduced(channel.reduce, changed[name], fill(template, env))
        self.state[node.scope] = changed
        one.output, one.status = output, COMPLETED
        failed = {"failed": len(one.errors)} if one.errors else {}
        self._tell(ev.NODE_COMPLETED, node.key, **failed)
        self._decide(node)

    def _fail(self, node: Node, item: int, error: dict[str, Json]) -> None:
        """End a node badly: the run too, unless it goes on."""
        one = self.nodes[node.key]
        one.error, one.status = error, FAILED
        shown = _item(node, item)
        self._tell(ev.NODE_FAILED, node.key, **shown, error=error, goes_on=node.goes_on)
        if node.goes_on:
            self._decide(node)
        else:
            self._end(node, item, error)

    def _end(self, node: Node, item: int, error: Mapping[str, Json]) -> None:
        """Note what ends the run."""
        about = {"node": node.key, **_item(node, item), "place": node.place}
        self.fatal.append(about | dict(error))

    def _decide(self, node: Node) -> None:
        """Say of each edge from a node that is over whether it is taken."""
        env = self.env(node.scope)
        try:
            numbers = self._fired(node, env)
        except BadValue as error:
            cause = _error("NODE_CONDITION", f"{node.place}: {error}")
            self.fatal.append({"node": node.key, "place": node.place, **cause})
            return
        back = next((n for n in numbers if self.graph.edges[n].most is not None), None)
        if back is not None:
            self._back(back, self.graph.edges[back])
            return
        for number in self.graph.out_of[node.key]:
            if self.graph.edges[number].most is None:
                self.taken[number] = number in numbers

    def _fired(self, node: Node, env: Mapping[str, Json]) -> list[int]:
        """List the edges from a node whose conditions hold; of a branch's cases only the first."""
        fired: list[int] = []
        chosen = False
        for number in self.graph.out_of[node.key]:
            edge = self.graph.edges[number]
            if (edge.case is not None and chosen) or self._worn_out(number):
                continue
            if edge.when is None or holds(edge.when, env):
                fired.append(number)
                chosen = chosen or edge.case is not None
        return fired

    def _worn_out(self, number: int) -> bool:
        """Tell whether an edge that leads back is to be ignored: its cap is used up."""
        edge = self.graph.edges[number]
        worn = edge.most is not None and self.loops.get(number, 0) >= edge.most
        return worn and edge.at_cap == "go_on"

    def _back(self, number: int, edge: Edge) -> None:
        """Go back by an edge: its target and all that follows are to be done anew."""
        if self.loops.get(number, 0) >= (edge.most or 0):
            cause = f"{edge.source} led back to {edge.target} {edge.most} times, its cap"
            place = self.graph.nodes[edge.source].place
            why = _error("NODE_LOOP_CAP", cause)
            self.fatal.append({"node": edge.source, "place": place, "loop": number, **why})
            return
        self.loops[number] = self.loops.get(number, 0) + 1
        for key in self.graph.after(edge.target):
            before = self.nodes[key]
            self.nodes[key] = NodeState(visit=before.visit, output=before.output)
            for out in self.graph.out_of[key]:
                self.taken.pop(out, None)
        self._forced.add(edge.target)

    def revive(self) -> None:
        """Try once more what ended the run: failed calls, and edges whose cap was used up."""
        fatal, self.fatal = self.fatal, []
        for one in fatal:
            if one["node"] in self.nodes:
                self._revive(self.graph.nodes[one["node"]], one)
        self.settle()

    def _revive(self, node: Node, fatal: Mapping[str, Json]) -> None:
        one, item = self.nodes[node.key], fatal.get("item", 0)
        if fatal["code"] in {"NODE_LOOP_CAP", "NODE_CONDITION"}:
            self.loops.pop(fatal.get("loop", -1), None)
            self._decide(node)
        elif node.work is None or not one.items or fatal["code"] == "NODE_STATE":
            self.nodes[node.key] = NodeState(visit=one.visit)
            self._forced.add(node.key)
        else:
            one.status, one.error = RUNNING, None
            one.failures.pop(item, None)
            one.again.append(item)

    def _tell(self, name: str, key: str, **payload: Any) -> None:
        visit = self.nodes[key].visit
        about: dict[str, Json] = {"node": key} | ({"visit": visit} if visit > 1 else {})
        self.events.append(Event(name, about | payload))


def _error(code: str, message: str) -> dict[str, Json]:
    return {"code": code, "message": message[:2000]}


def _item(node: Node, item: int) -> dict[str, Json]:
    return {"item": item} if node.is_map else {}


def _by_text(errors: Mapping[int, Json]) -> dict[str, Json]:
    return {str(i): errors[i] for i in sorted(errors)}
