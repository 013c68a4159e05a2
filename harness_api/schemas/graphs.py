"""Graphs on the wire: their nodes and edges, how far a run is in them, and their picture."""

from __future__ import annotations

from typing import Any

from harness_api.schemas.base import Output
from harness_api.schemas.runs import AgentRef


class GraphNodeView(Output):
    """One node. The state is null where no run is asked about."""

    key: str
    """Its name, after those of the subgraphs that it is in: `outer/inner`."""
    kind: str
    place: str
    """Where it stands in the definition, as a JSON pointer."""
    status: str | None = None
    visit: int | None = None
    """How often its turn has come."""
    done: int | None = None
    of: int | None = None
    """Items of a map that are over, of how many."""
    error: dict[str, Any] | None = None


class GraphEdgeView(Output):
    """That one node follows another."""

    source: str
    target: str
    when: str | None
    """Its condition in a few words."""
    max: int | None
    """Set for an edge that leads back."""
    taken: bool | None = None
    """Whether a run has taken it; null while that is open."""


class GraphView(Output):
    """A graph, with its picture in two languages."""

    agent: AgentRef
    nodes: list[GraphNodeView]
    edges: list[GraphEdgeView]
    mermaid: str
    dot: str


class RunGraphView(GraphView):
    """A graph with how far one run is in it."""

    run_id: str
    run_status: str
    state: dict[str, Any]
    """The shared state."""
