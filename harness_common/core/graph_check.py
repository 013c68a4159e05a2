"""Finds every fault of a graph before it ever runs, each with its exact place in the definition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from harness_common.core.graph import Graph, Node, reach
from harness_common.core.graph_values import FITS, holes, pointers
from harness_common.core.message import Json
from harness_common.core.pointer import write

MOST_FAULTS: Final = 100
MOST_NODES: Final = 1_000
_SHOWN: Final = frozenset({"status", "output", "error", "visit"})
_ROOTS: Final = frozenset({"input", "state", "nodes", "said"})


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and where: `place` is a JSON pointer into the definition."""

    place: str
    code: str
    message: str

    def to_json(self) -> Json:
        """Write the fault as part of an error."""
        return {"field": self.place, "code": self.code, "message": self.told}

    @property
    def told(self) -> str:
        """Say where and what, in one line."""
        return f"{self.place}: {self.message}"


def faults(graph: Graph) -> list[Fault]:
    """List what is wrong with a graph whose edges' ends exist."""
    if len(graph.nodes) > MOST_NODES:
        message = f"{len(graph.nodes)} nodes with those of subgraphs, more than {MOST_NODES}"
        return [Fault("/graph/nodes", "TOO_LARGE", message)]
    found = [*_channels(graph), *_cycles(graph)]
    if not any(f.code == "CYCLE_WITHOUT_CAP" for f in found):
        found += _unreachable(graph)
        for node in graph.nodes.values():
            found += _node(graph, node)
        found += _of_template(_Reader(graph, "", None), graph.output, ("graph", "output"))
    return found[:MOST_FAULTS]


def _place(node: Node, *more: str | int) -> str:
    return node.place + write(more)


def _channels(graph: Graph) -> Iterator[Fault]:
    for scope, channels in graph.channels.items():
        base = "/graph" if scope == "" else graph.nodes[scope].place + "/graph"
        for name, channel in channels.items():
            wanted = FITS.get(channel.reduce)
            start = channel.start
            fits = wanted is None or start is None or isinstance(start, wanted)
            if not fits or (channel.reduce == "add" and isinstance(start, bool)):
                yield Fault(
                    f"{base}{write(('state', name, 'start'))}",
                    "REDUCER_TYPE",
                    f"`{channel.reduce}` starts with {_words(channel.reduce)}, not with {start!r}",
                )


def _words(reducer: str) -> str:
    return {"add": "a number", "merge": "an object"}.get(reducer, "a list")


def _cycles(graph: Graph) -> Iterator[Fault]:
    """Find cycles that no edge with a cap closes, and caps on edges that close none."""
    cycle = _cycle(graph)
    if cycle is not None:
        way = " -> ".join([*cycle, cycle[0]])
        yield Fault(
            graph.nodes[cycle[0]].place,
            "CYCLE_WITHOUT_CAP",
            f"the nodes {way} lead back to each other without end: give the edge that leads back "
            "a `max`",
        )
        return
    for edge in graph.edges:
        if edge.most is not None and edge.source not in graph.after(edge.target):
            yield Fault(
                f"{edge.place}/max",
                "CAP_WITHOUT_CYCLE",
                f"the edge to {edge.target} has a `max` but leads nowhere back: {edge.target} does "
                f"not come before {edge.source}",
            )


def _cycle(graph: Graph) -> list[str] | None:
    """Return the nodes of one cycle of edges without a cap, None when there is none."""
    left = {key: len(graph.into[key]) for key in graph.nodes}
    free = [key for key, n in left.items() if n == 0]
    while free:
        for follower in graph.forward(free.pop()):
            left[follower] -= 1
            if left[follower] == 0:
                free.append(follower)
    stuck = {key for key, n in left.items() if n > 0}
    if not stuck:
        return None
    way = [next(k for k in graph.nodes if k in stuck)]
    while True:
        # Whatever is stuck has something stuck before it: going back finds the cycle.
        before = next(k for k in graph.before(way[-1]) if k in stuck)
        if before in way:
            found = way[way.index(before) :][::-1]
            first = found.index(min(found))
            return found[first:] + found[:first]
        way.append(before)


def _unreachable(graph: Graph) -> Iterator[Fault]:
    """Find nodes that never begin, and nodes that stand apart from a graph that has edges."""
    starts = [key for key in graph.nodes if not graph.into[key] and not _only_back(graph, key)]
    found = reach(starts, lambda k: [graph.edges[i].target for i in graph.out_of[k]])
    apart = _apart(graph)
    for key, node in graph.nodes.items():
        if node.kind == "leave":
            continue
        if key not in found:
            yield Fault(node.place, "UNREACHABLE", f"nothing leads to the node {node.name}")
        elif key in apart:
            message = f"no edge leads to or from the node {node.name}: name it in an edge"
            yield Fault(node.place, "UNREACHABLE", message)


def _only_back(graph: Graph, key: str) -> bool:
    """Tell whether a node is led to by edges that lead back only, from nodes that it does not come
    before: it would never begin.
    """
    back = [e for e in graph.edges if e.target == key and e.most is not None]
    return bool(back) and not any(e.source in graph.after(key) for e in back)


def _apart(graph: Graph) -> set[str]:
    """Return the nodes that no edge of the definition names, of those scopes that have edges."""
    named = set[str]()
    scopes = set[str]()
    for edge in graph.edges:
        if edge.place:
            ends = {edge.source.removesuffix("/*"), edge.target}
            named |= ends
            scopes |= {graph.nodes[end].scope for end in ends}
    return {k for k, n in graph.nodes.items() if k not in named and n.scope in scopes}


class _Reader:
    """Which pointers may be used at one place."""

    def __init__(self, graph: Graph, scope: str, node: Node | None) -> None:
        self.scope, self.node = scope, node
        self.more: frozenset[str] = frozenset()
        self.known = {n.name for n in graph.nodes.values() if n.scope == scope}
        self.channels = graph.channels[scope]
        self.before = None if node is None else _before(graph, node, scope)

    def fault(self, at: str) -> str | None:
        """Say why a pointer leads nowhere, None when it may lead somewhere."""
        at = at.removesuffix("?")
        if not at.startswith("/"):
            return f"{at!r} is no JSON pointer: it begins with /"
        root, *rest = [p.replace("~1", "/").replace("~0", "~") for p in at[1:].split("/")]
        if root not in _ROOTS | self.more:
            known = ", ".join(f"/{name}" for name in sorted(_ROOTS | self.more))
            return f"{at} points at nothing: here are {known}"
        if root == "state":
            return self._state(at, rest)
        return self._node(at, rest) if root == "nodes" else None

    def _state(self, at: str, rest: Sequence[str]) -> str | None:
        if rest and rest[0] not in self.channels:
            known = ", ".join(sorted(self.channels)) or "nothing"
            return f"{at} points at nothing: the state has {known}"
        return None

    def _node(self, at: str, rest: Sequence[str]) -> str | None:
        if not rest:
            return None
        if rest[0] not in self.known:
            return f"{at} points at nothing: there is no node {rest[0]!r} here"
        if len(rest) > 1 and rest[1] not in _SHOWN:
            return f"{at} points at nothing: a node has {', '.join(sorted(_SHOWN))}"
        if self.before is not None and rest[0] not in self.before:
            own = self.node is not None and rest[0] == self.node.name
            why = "it is this node" if own else f"{rest[0]} does not come before this node"
            return f"{at} points at nothing yet: {why}"
        return None


def _before(graph: Graph, node: Node, scope: str) -> set[str]:
    """Name the nodes of a scope that may be over when a node begins, through edges of all kinds."""
    into: dict[str, list[str]] = {key: [] for key in graph.nodes}
    for edge in graph.edges:
        into[edge.target].append(edge.source)
    found = reach(into[node.key], lambda key: into[key])
    return {graph.nodes[k].name for k in found if graph.nodes[k].scope == scope}


def _node(graph: Graph, node: Node) -> Iterator[Fault]:
    reader = _Reader(graph, node.scope, node)
    path = tuple(node.place[1:].split("/"))
    if node.kind == "enter":
        yield from _of_template(reader, node.value, (*path, "input"))
    elif node.kind == "leave":
        inner = _Reader(graph, node.key.removesuffix("/*"), None)
        yield from _of_template(inner, node.value, (*path, "graph", "output"))
    if node.is_map:
        yield from _of_template(reader, node.over, (*path, "over"))
        reader.more = frozenset({"item", "index"})
    if node.work is not None:
        do = (*path, *_argument_path(node))
        yield from _of_template(reader, dict(node.work.arguments), do)
    yield from _writes(graph, node, path)
    yield from _conditions(graph, node)


def _argument_path(node: Node) -> tuple[str, ...]:
    """Return where the arguments of a node's call stand in its definition."""
    called = ("do",) if node.is_map else ()
    return (*called, "args") if node.work is not None and node.work.is_tool else called


def _writes(graph: Graph, node: Node, path: tuple[str, ...]) -> Iterator[Fault]:
    reader = _Reader(graph, node.scope, None)
    reader.more = frozenset({"output", "error"})
    channels: Mapping[str, object] = graph.channels[node.scope]
    for name, template in node.writes:
        if name not in channels:
            known = ", ".join(sorted(channels)) or "nothing"
            message = f"the state has no {name!r}: it has {known}"
            yield Fault(_place(node, "set", name), "UNKNOWN_STATE", message)
        yield from _of_template(reader, template, (*path, "set", name))


def _conditions(graph: Graph, node: Node) -> Iterator[Fault]:
    reader = _Reader(graph, node.scope, None)
    for number in graph.out_of[node.key]:
        edge = graph.edges[number]
        if edge.when is None:
            continue
        for path, at in pointers(edge.when, ("when",)):
            if why := reader.fault(at):
                yield Fault(edge.place + write(path), "POINTS_NOWHERE", why)


def _of_template(reader: _Reader, template: Json, path: tuple[str | int, ...]) -> Iterator[Fault]:
    for inner, at in holes(template):
        if why := reader.fault(at):
            yield Fault(write((*path, *inner)), "POINTS_NOWHERE", why)
