"""What a graph is: nodes, the edges between them, and the state that they share. Pure values.

`contracts.graph` builds one from a definition, with its subgraphs taken apart into nodes of one
flat graph; `core.graph_progress` follows it. A node of a subgraph `s` has the key `s/name`, and `s`
itself becomes two nodes: `s`, where it is entered, and `s/*`, where it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Literal

from harness_common.core.message import Json

Kind = Literal["tool", "model", "agent", "wait", "approval", "map", "branch", "enter", "leave"]
Reducer = Literal["replace", "append", "add", "merge", "union"]

MODEL_CALL: Final = "graph__model"
"""The ledger's name of a model node's sampling."""
ANSWER_CUT: Final = "ANSWER_CUT"
REFUSED: Final = "REFUSED"
_FINISH: Final = {None: "stop", ANSWER_CUT: "length", REFUSED: "refusal"}
APPROVAL_CALL: Final = "graph__approval"
"""The ledger's name of an approval node's question."""
WAIT_CALL: Final = "wait"
AGENT_CALL: Final = "spawn_run"
INSTANT: Final = frozenset({"branch", "enter", "leave"})
"""Kinds that call nothing: they are over as soon as their turn comes."""
PATIENT: Final = frozenset({AGENT_CALL, APPROVAL_CALL, WAIT_CALL})
"""Calls that may take long: they begin when nothing else can be done, so that a branch that waits
does not hold up another.
"""
MAX_CALLS: Final = 64
"""Calls of one step at most: a larger map takes several steps, each of a bounded size."""
CALLS_PER_SLOT: Final = 8
"""How many items of a map one step takes for each that may be under way at the same time."""


def finish_of(error_type: str | None) -> str | None:
    """Name how the answer ended that a model node's call has for an outcome; None if it has none.

    It follows from the outcome, as nothing else of an answer is kept while its step is put off.
    """
    return _FINISH.get(error_type)


@dataclass(frozen=True, slots=True)
class Channel:
    """One named value of the shared state, and how what nodes give becomes part of it."""

    reduce: Reducer = "replace"
    start: Json = None


@dataclass(frozen=True, slots=True)
class Again:
    """How often a failed call is made again, and after how long."""

    times: int = 0
    backoff_s: float = 1.0
    factor: float = 2.0

    def after_s(self, failures: int) -> float:
        """Return the wait after the `failures`-th failure."""
        return float(min(self.backoff_s * self.factor ** (failures - 1), 86_400.0))


@dataclass(frozen=True, slots=True)
class Work:
    """The call that a node makes: its name in the ledger, and its arguments as a template."""

    call: str
    arguments: Mapping[str, Json]
    parse: Literal["auto", "text", "json"] = "auto"
    texts: tuple[str, ...] = ()
    """Arguments that are texts, whatever their holes are filled with."""

    is_tool: bool = False
    """Whether the call is one of a tool by name, with arguments of its own."""

    @property
    def is_patient(self) -> bool:
        """Tell whether the call may take long without anybody working on it."""
        return self.call in PATIENT


@dataclass(frozen=True, slots=True)
class Node:
    """One node; `name` is unique within its scope, `key` in the whole graph."""

    key: str
    name: str
    scope: str
    kind: Kind
    place: str
    """Where it stands in the definition, as a JSON pointer."""
    work: Work | None = None
    over: Json = None
    """The list of a map, as a template."""
    parallel: int = 1
    max_items: int = 1
    value: Json = None
    """The input of a subgraph where it is entered, its output where it is left, as a template."""
    writes: tuple[tuple[str, Json], ...] = ()
    """Channels of its scope, each with the template of what is given to it."""
    again: Again = field(default_factory=Again)
    goes_on: bool = False
    """A failure is a result like any other, rather than the end of the run."""

    @property
    def is_map(self) -> bool:
        """Tell whether the node makes its call for every item of a list."""
        return self.kind == "map"


@dataclass(frozen=True, slots=True)
class Edge:
    """That one node follows another. With `most` it leads back, so many times in a run at most."""

    source: str
    target: str
    when: Json = None
    most: int | None = None
    at_cap: Literal["fail", "go_on"] = "fail"
    case: int | None = None
    """Its place among the cases of a branch, of which the first that holds is taken; the default is
    the last.
    """
    place: str = ""
    """Where it stands in the definition, as a JSON pointer."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole graph; `make_graph` fills in what is derived."""

    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]
    channels: Mapping[str, Mapping[str, Channel]]
    """By scope, the root's being the empty one."""
    output: Json = None
    into: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each node the edges that lead to it, without those that lead back."""
    out_of: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each node the edges that lead from it, in the order of the definition."""

    def forward(self, key: str) -> list[str]:
        """List the nodes that follow one directly, without those that it leads back to."""
        edges = (self.edges[i] for i in self.out_of[key])
        return [e.target for e in edges if e.most is None]

    def before(self, key: str) -> list[str]:
        """List the nodes that one follows directly."""
        return [self.edges[i].source for i in self.into[key]]

    def after(self, key: str) -> list[str]:
        """List a node and all that follow it, without what it leads back to, in order."""
        found = reach([key], self.forward)
        return [k for k in self.nodes if k in found]

    def last(self, scope: str = "") -> list[Node]:
        """List the nodes of a scope that nothing within it follows."""
        end = f"{scope}/*"
        if scope:
            return [self.nodes[k] for k in self.before(end) if self.nodes[k].scope == scope]
        return [n for k, n in self.nodes.items() if n.scope == "" and not self.forward(k)]


def reach(starts: Iterable[str], nexts: Callable[[str], Iterable[str]]) -> set[str]:
    """Return everything that can be reached from `starts`, which are among it."""
    found, todo = set[str](), list(starts)
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += nexts(one)
    return found


def make_graph(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    channels: Mapping[str, Mapping[str, Channel]],
    output: Json = None,
) -> Graph:
    """Build a graph; every edge's ends must exist.

    Its order is that of the edges, and of the names where they leave it open: a definition that a
    database gives back in another order is the same graph.
    """
    into: dict[str, list[int]] = {node.key: [] for node in nodes}
    out_of: dict[str, list[int]] = {node.key: [] for node in nodes}
    for number, edge in enumerate(edges):
        out_of[edge.source].append(number)
        if edge.most is None:
            into[edge.target].append(number)
    by_key = {node.key: node for node in nodes}
    nexts = {key: [edges[i] for i in found] for key, found in out_of.items()}
    return Graph(
        {key: by_key[key] for key in _in_order(into, nexts)},
        tuple(edges),
        channels,
        output,
        {key: tuple(found) for key, found in into.items()},
        {key: tuple(found) for key, found in out_of.items()},
    )


def _in_order(into: Mapping[str, list[int]], nexts: Mapping[str, list[Edge]]) -> list[str]:
    """Sort nodes so that each comes after those it follows; what leads to itself comes last."""
    left = {key: len(found) for key, found in into.items()}
    free = [key for key, n in left.items() if n == 0]
    heapify(free)
    found: list[str] = []
    while free:
        found.append(heappop(free))
        for edge in nexts[found[-1]]:
            if edge.most is None:
                left[edge.target] -= 1
                if left[edge.target] == 0:
                    heappush(free, edge.target)
    return [*found, *sorted(left.keys() - set(found))]
