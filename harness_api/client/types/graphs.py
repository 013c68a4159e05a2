"""Graphs, as the client returns them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from harness_api.client.types.runs import AgentRef
from harness_api.client.types.view import View


class GraphNode(View):
    """One node; what concerns a run is None where none was asked about."""

    key: str
    kind: str
    place: str
    status: str | None = None
    visit: int | None = None
    done: int | None = None
    of: int | None = None
    error: dict[str, Any] | None = None


class GraphEdge(View):
    """That one node follows another."""

    source: str
    target: str
    when: str | None = None
    max: int | None = None
    taken: bool | None = None


class Graph(View):
    """A graph with its picture; of a run, with how far it is."""

    agent: AgentRef
    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    mermaid: str
    dot: str
    run_id: str | None = None
    run_status: str | None = None
    state: dict[str, Any] = Field(default_factory=dict)
