"""From the definition of a graph to the flat graph that `core` follows, and to what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from harness_common.contracts.graph import (
    AgentNode,
    ApprovalNode,
    BranchNode,
    DoAgent,
    DoModel,
    DoTool,
    GraphSpec,
    MapNode,
    ModelNode,
    NodeSpec,
    SubgraphNode,
    ToolNode,
    WaitNode,
)
from harness_common.core.graph import (
    AGENT_CALL,
    APPROVAL_CALL,
    MODEL_CALL,
    WAIT_CALL,
    Again,
    Channel,
    Edge,
    Graph,
    Node,
    Work,
    make_graph,
)
from harness_common.core.graph_values import literal
from harness_common.core.message import Json
from harness_common.core.pointer import write

Path = tuple[str | int, ...]
ROOT: Final[Path] = ("graph",)
_Called = ToolNode | ModelNode | AgentNode | WaitNode | ApprovalNode | DoTool | DoModel | DoAgent


class _Parts:
    """What is gathered while a definition is taken apart."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.channels: dict[str, dict[str, Channel]] = {}


def compiled(spec: GraphSpec) -> Graph:
    """Return the flat graph of a definition. Its edges' ends must exist (`unknown_ends`)."""
    parts = _Parts()
    _scope(parts, spec, "", ROOT)
    return make_graph(parts.nodes, parts.edges, parts.channels, spec.output)


def tool_names(spec: GraphSpec) -> tuple[str, ...]:
    """Name the tools that a graph calls, each once, in its order."""
    return tuple(dict.fromkeys(name for name, _ in tools_of(spec)))


def tools_of(spec: GraphSpec, path: Path = ROOT) -> Iterator[tuple[str, str]]:
    """List the tools that a graph calls, each with its place in the definition."""
    for name, node in spec.nodes.items():
        at = (*path, "nodes", name)
        match node:
            case ToolNode():
                yield node.tool, write((*at, "tool"))
            case MapNode(do=DoTool(tool=tool)):
                yield tool, write((*at, "do", "tool"))
            case AgentNode() | MapNode(do=DoAgent()):
                yield AGENT_CALL, write(at)
            case WaitNode():
                yield WAIT_CALL, write(at)
            case SubgraphNode():
                yield from tools_of(node.graph, (*at, "graph"))
            case _:
                pass


def unknown_ends(spec: GraphSpec, path: Path = ROOT) -> Iterator[tuple[str, str]]:
    """List the names of edges that are no nodes, each with its place in the definition."""
    for i, edge in enumerate(spec.edges):
        for end, name in (("from", edge.source), ("to", edge.target)):
            if name not in spec.nodes:
                yield name, write((*path, "edges", i, end))
    for name, node in spec.nodes.items():
        at = (*path, "nodes", name)
        if isinstance(node, BranchNode):
            for i, case in enumerate(node.cases):
                if case.to not in spec.nodes:
                    yield case.to, write((*at, "cases", i, "to"))
            if node.default is not None and node.default not in spec.nodes:
                yield node.default, write((*at, "default"))
        elif isinstance(node, SubgraphNode):
            yield from unknown_ends(node.graph, (*at, "graph"))


def _scope(parts: _Parts, spec: GraphSpec, scope: str, path: Path) -> None:
    """Take one graph apart; `scope` is the key of the subgraph that it is, or empty."""
    parts.channels[scope] = {
        name: Channel(one.reduce, one.start) for name, one in spec.state.items()
    }
    for name, node in spec.nodes.items():
        _node(parts, node, _key(scope, name), name, scope, (*path, "nodes", name))
    for i, edge in enumerate(spec.edges):
        source, target = _way_out(spec, scope, edge.source), _key(scope, edge.target)
        place = write((*path, "edges", i))
        parts.edges.append(Edge(source, target, edge.when, edge.max, edge.at_cap, place=place))
    for name, node in spec.nodes.items():
        if isinstance(node, BranchNode):
            _cases(parts, node, scope, name, (*path, "nodes", name))


def _key(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope else name


def _way_out(spec: GraphSpec, scope: str, name: str) -> str:
    """Return the node that edges from `name` begin at: of a subgraph where it is left."""
    key = _key(scope, name)
    return f"{key}/*" if isinstance(spec.nodes[name], SubgraphNode) else key


def _cases(parts: _Parts, node: BranchNode, scope: str, name: str, path: Path) -> None:
    key = _key(scope, name)
    for i, case in enumerate(node.cases):
        target, place = _key(scope, case.to), write((*path, "cases", i))
        parts.edges.append(Edge(key, target, case.when, case.max, case.at_cap, i, place))
    if node.default is not None:
        target, place = _key(scope, node.default), write((*path, "default"))
        parts.edges.append(Edge(key, target, case=len(node.cases), place=place))


def _node(parts: _Parts, node: NodeSpec, key: str, name: str, scope: str, path: Path) -> None:
    place, writes = write(path), tuple(node.set.items())
    if isinstance(node, SubgraphNode):
        _subgraph(parts, node, key, name, scope, path)
    elif isinstance(node, BranchNode):
        parts.nodes.append(Node(key, name, scope, "branch", place, writes=writes))
    else:
        parts.nodes.append(
            Node(
                key,
                name,
                scope,
                node.kind,
                place,
                work=_work(node.do if isinstance(node, MapNode) else node),
                over=node.over if isinstance(node, MapNode) else None,
                parallel=node.parallel if isinstance(node, MapNode) else 1,
                max_items=node.max_items if isinstance(node, MapNode) else 1,
                writes=writes,
                again=Again(node.retry.times, node.retry.backoff_s, node.retry.factor),
                goes_on=node.on_error == "go_on",
            )
        )


def _subgraph(
    parts: _Parts, node: SubgraphNode, key: str, name: str, scope: str, path: Path
) -> None:
    """Put in the node where a subgraph is entered, what is in it, and the node where it is left."""
    end, place = f"{key}/*", write(path)
    parts.nodes.append(Node(key, name, scope, "enter", place, value=node.input))
    first = len(parts.nodes), len(parts.edges)
    _scope(parts, node.graph, key, (*path, "graph"))
    inner = [n.key for n in parts.nodes[first[0] :] if n.scope == key]
    edges = [e for e in parts.edges[first[1] :] if e.most is None]
    led_to, led_from = {e.target for e in edges}, {e.source for e in edges}
    for one in inner:
        if one not in led_to and not one.endswith("/*"):
            parts.edges.append(Edge(key, one))
        if one not in led_from:
            parts.edges.append(Edge(one, end))
    parts.edges.append(Edge(key, end))
    output, writes = node.graph.output, tuple(node.set.items())
    parts.nodes.append(Node(end, name, scope, "leave", place, value=output, writes=writes))


def _work(node: _Called) -> Work:
    """Return the call that a node makes."""
    match node:
        case ToolNode() | DoTool():
            return Work(node.tool, node.args, node.parse, is_tool=True)
        case ModelNode() | DoModel():
            asked: dict[str, Json] = {"prompt": node.prompt}
            more = {
                "system": node.system,
                "model": node.model,
                "max_output_tokens": node.max_output_tokens,
                "temperature": node.temperature,
                "options": node.options or None,
                "fallback_models": node.fallback_models,
                "output_schema": literal(node.output_schema),
            }
            asked |= {name: value for name, value in more.items() if value is not None}
            parse = node.parse or ("text" if node.output_schema is None else "json")
            return Work(MODEL_CALL, asked, parse, ("prompt", "system"))
        case AgentNode() | DoAgent():
            return Work(AGENT_CALL, _agent_arguments(node), node.parse, ("input",))
        case WaitNode():
            return Work(WAIT_CALL, {"seconds": node.seconds, "until": node.until}, "text")
        case ApprovalNode():
            return Work(APPROVAL_CALL, {"ask": node.ask, "show": node.show}, "json", ("ask",))


def _agent_arguments(node: AgentNode | DoAgent) -> dict[str, Json]:
    shares = {"max_tokens": node.max_tokens, "max_cost_usd": node.max_cost_usd}
    given = {name: value for name, value in shares.items() if value is not None}
    return {"agent": node.agent, "input": node.input} | given
