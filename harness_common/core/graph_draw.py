"""A graph as a picture: Mermaid and DOT, plain or with how far a run is. Pure text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from harness_common.core.graph import Edge, Graph, Node
from harness_common.core.message import Json

_MERMAID: Final[Mapping[str, tuple[str, str]]] = {
    "tool": ("[", "]"),
    "model": ("(", ")"),
    "agent": ("[[", "]]"),
    "map": ("[/", "/]"),
    "branch": ("{", "}"),
    "wait": ("([", "])"),
    "approval": ("{{", "}}"),
}
_DOT: Final[Mapping[str, str]] = {
    "tool": "box",
    "model": "ellipse",
    "agent": "component",
    "map": "parallelogram",
    "branch": "diamond",
    "wait": "octagon",
    "approval": "hexagon",
    "enter": "point",
    "leave": "point",
}
COLOURS: Final[Mapping[str, str]] = {
    "pending": "#f4f4f4",
    "running": "#cfe2ff",
    "waiting": "#fff3cd",
    "completed": "#d1e7dd",
    "failed": "#f8d7da",
    "skipped": "#e2e3e5",
}
_COMPARE: Final = {"is": "=", "is_not": "≠", "lt": "<", "le": "≤", "gt": ">", "ge": "≥"}
_LABEL_CHARS: Final = 60


@dataclass(frozen=True, slots=True)
class Shown:
    """How far one node of a run is."""

    status: str
    visit: int = 0
    done: int | None = None
    of: int | None = None
    """Items of a map that are over, of how many."""

    @property
    def words(self) -> str:
        """Say it in a few words."""
        items = f" {self.done}/{self.of}" if self.of is not None else ""
        visits = f", visit {self.visit}" if self.visit > 1 else ""
        return f"{self.status}{items}{visits}"


def mermaid(graph: Graph, shown: Mapping[str, Shown] | None = None) -> str:
    """Write a graph as a Mermaid flowchart; with `shown`, coloured by how far its nodes are."""
    ids = {key: f"n{i}" for i, key in enumerate(graph.nodes)}
    lines = ["flowchart TD", *_mermaid_scope(graph, "", ids, shown, "  ")]
    lines += [f"  {_mermaid_edge(graph, edge, ids)}" for edge in graph.edges if edge.place]
    if shown is not None:
        used = {one.status for one in shown.values()}
        lines += [f"  classDef {s} fill:{c},color:#222" for s, c in COLOURS.items() if s in used]
    return "\n".join(lines) + "\n"


def _mermaid_scope(
    graph: Graph, scope: str, ids: Mapping[str, str], shown: Mapping[str, Shown] | None, pad: str
) -> Iterator[str]:
    for node in graph.nodes.values():
        if node.scope != scope or node.kind == "leave":
            continue
        state = shown.get(node.key) if shown else None
        if node.kind == "enter":
            label = _quoted(_label(node, state))
            yield f'{pad}subgraph {ids[node.key]}["{label}"]'
            yield from _mermaid_scope(graph, node.key, ids, shown, pad + "  ")
            yield f"{pad}end"
            continue
        left, right = _MERMAID[node.kind]
        status = f":::{state.status}" if state else ""
        yield f'{pad}{ids[node.key]}{left}"{_quoted(_label(node, state))}"{right}{status}'


def _mermaid_edge(graph: Graph, edge: Edge, ids: Mapping[str, str]) -> str:
    words = _quoted(_edge_label(graph, edge))
    arrow = "-.->" if edge.most is not None else "-->"
    label = f'|"{words}"|' if words else ""
    return f"{ids[edge.source.removesuffix('/*')]} {arrow}{label} {ids[edge.target]}"


def dot(graph: Graph, shown: Mapping[str, Shown] | None = None) -> str:
    """Write a graph in Graphviz' language; with `shown`, coloured by how far its nodes are."""
    lines = ["digraph graph_run {", '  node [fontname="sans-serif"];']
    lines += _dot_scope(graph, "", shown, "  ")
    for edge in graph.edges:
        label = _dot_quoted(_edge_label(graph, edge))
        style = ", style=dashed" if edge.most is not None else ""
        source, target = _dot_quoted(edge.source), _dot_quoted(edge.target)
        lines.append(f'  "{source}" -> "{target}" [label="{label}"{style}];')
    return "\n".join([*lines, "}"]) + "\n"


def _dot_scope(
    graph: Graph, scope: str, shown: Mapping[str, Shown] | None, pad: str
) -> Iterator[str]:
    for node in graph.nodes.values():
        if node.scope != scope:
            continue
        state = shown.get(node.key) if shown else None
        colour = f', style=filled, fillcolor="{COLOURS[state.status]}"' if state else ""
        label, key = _dot_quoted(_label(node, state)), _dot_quoted(node.key)
        yield f'{pad}"{key}" [shape={_DOT[node.kind]}, label="{label}"{colour}];'
        if node.kind == "enter":
            yield f'{pad}subgraph "cluster_{key}" {{ label="{label}";'
            yield from _dot_scope(graph, node.key, shown, pad + "  ")
            yield f"{pad}}}"


def _label(node: Node, state: Shown | None) -> str:
    about: str = "subgraph" if node.kind == "enter" else node.kind
    if node.work is not None and (node.work.is_tool or node.is_map):
        call = node.work.call.removeprefix("graph__").removeprefix("spawn_run") or "agent"
        about = f"{node.kind} {call}"
    words = f"\n{state.words}" if state else ""
    return f"{node.name}\n{about}{words}"


def _edge_label(graph: Graph, edge: Edge) -> str:
    words = [] if edge.when is None else [condition_text(edge.when)]
    if edge.case is not None and edge.when is None and graph.nodes[edge.source].kind == "branch":
        words.append("else")
    if edge.most is not None:
        words.append(f"max {edge.most}")
    text = ", ".join(words)
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"


def condition_text(condition: Json) -> str:
    """Write a condition in a few words."""
    for name in ("all", "any"):
        if name in condition:
            joint = " and " if name == "all" else " or "
            return "(" + joint.join(condition_text(one) for one in condition[name]) + ")"
    if "not" in condition:
        return f"not {condition_text(condition['not'])}"
    asked = (
        f"{_COMPARE.get(name, name)} {value}" for name, value in condition.items() if name != "at"
    )
    return f"{condition['at']} {' '.join(asked)}"


def _quoted(text: str) -> str:
    """Write a text so that Mermaid takes it as it is."""
    for char, code in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(char, code)
    return text.replace("`", "'").replace("\n", "<br/>")


def _dot_quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
