"""Graphs as pictures: of an agent, and of a run with how far each node is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routes.ids import RunId
from harness_api.routing import new_router
from harness_api.schemas.graphs import GraphEdgeView, GraphNodeView, GraphView, RunGraphView
from harness_api.schemas.runs import AgentRef
from harness_common.contracts.agent import AgentSpec, Name
from harness_common.contracts.graph_compile import compiled
from harness_common.core.errors import Invalid
from harness_common.core.graph import Graph
from harness_common.core.graph_draw import Shown, condition_text, dot, mermaid
from harness_common.core.graph_log import asked_in, replay
from harness_common.core.graph_progress import Progress
from harness_common.core.graph_view import shown_nodes
from harness_common.core.ids import encode
from harness_common.core.message import Message, from_json
from harness_common.core.phase import shown_status
from harness_common.core.run import TERMINAL
from harness_common.store.agents import read_agent
from harness_common.store.db import Database
from harness_common.store.rows import StoredRun, run_from_row
from harness_common.store.run_reads import read_messages, view_run

router = new_router("/v1", "graphs")

CanReadAgents = Annotated[Caller, requires("agents:read")]
CanReadRuns = Annotated[Caller, requires("runs:read")]
_PAGE = 500


@router.get("/agents/{name}/graph", operation_id="getAgentGraph", response_model=GraphView)
async def get_agent_graph(
    name: Name,
    services: Use,
    caller: CanReadAgents,
    version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> GraphView:
    """Read the graph of an agent of `kind: graph`: nodes, edges, and its picture."""
    row = await read_agent(services.db, caller.tenant_id, name, version)
    graph = _graph(AgentSpec.model_validate(row["spec"]), name)
    return GraphView(
        agent=AgentRef(name=row["name"], version=row["version"]),
        nodes=_nodes(graph, None, None),
        edges=_edges(graph, None),
        mermaid=mermaid(graph),
        dot=dot(graph),
    )


@router.get("/runs/{run_id}/graph", operation_id="getRunGraph", response_model=RunGraphView)
async def get_run_graph(run_id: RunId, services: Use, caller: CanReadRuns) -> RunGraphView:
    """Read how far a graph run is: the state of every node, which edges were taken, the picture."""
    db, tenant_id = services.db, caller.tenant_id
    run = run_from_row(await view_run(db, tenant_id, run_id))
    row = await read_agent(db, tenant_id, run.agent_name, run.agent_version)
    spec = AgentSpec.model_validate(row["spec"]).with_overrides(run.overrides)
    graph = _graph(spec, run.agent_name)
    messages = await _messages(db, run)
    said = tuple(run.state.memo.get("steer", ()))
    progress = replay(graph, messages, said)
    is_over = run.state.status in TERMINAL
    shown = shown_nodes(progress, asked_in(messages), run.state.waiting, is_over=is_over)
    return RunGraphView(
        agent=AgentRef(name=run.agent_name, version=run.agent_version),
        run_id=encode("run", run.id),
        run_status=shown_status(run.state),
        nodes=_nodes(graph, progress, shown),
        edges=_edges(graph, progress),
        state=dict(progress.state[""]),
        mermaid=mermaid(graph, shown),
        dot=dot(graph, shown),
    )


def _graph(spec: AgentSpec, name: str) -> Graph:
    if spec.graph is None:
        raise Invalid(
            f"agent {name} is no graph: its model decides what is done",
            code="NO_GRAPH",
            field="name",
            value=name,
        )
    return compiled(spec.graph)


async def _messages(db: Database, run: StoredRun) -> list[Message]:
    out: list[Message] = []
    while len(out) < run.state.messages:
        rows = await read_messages(db, run.tenant_id, run.id, after=len(out), limit=_PAGE)
        out += [from_json(row["body"]) for row in rows]
        if len(rows) < _PAGE:
            break
    return out[: run.state.messages]


def _nodes(
    graph: Graph, progress: Progress | None, shown: Mapping[str, Shown] | None
) -> list[GraphNodeView]:
    out = []
    for key, node in graph.nodes.items():
        if node.kind == "leave":
            continue
        # Of a subgraph what is told is how far the node is where it is left.
        own = f"{key}/*" if node.kind == "enter" else key
        one = shown[own] if shown else None
        error = progress.nodes[own].error if progress else None
        out.append(
            GraphNodeView(
                key=key,
                kind="subgraph" if node.kind == "enter" else node.kind,
                place=node.place,
                status=one.status if one else None,
                visit=one.visit if one else None,
                done=one.done if one else None,
                of=one.of if one else None,
                error=error,
            )
        )
    return out


def _edges(graph: Graph, progress: Progress | None) -> list[GraphEdgeView]:
    return [
        GraphEdgeView(
            source=edge.source.removesuffix("/*"),
            target=edge.target,
            when=None if edge.when is None else condition_text(edge.when),
            max=edge.most,
            taken=_taken(progress, i, edge.most) if progress else None,
        )
        for i, edge in enumerate(graph.edges)
        if edge.place
    ]


def _taken(progress: Progress, number: int, most: int | None) -> bool | None:
    return progress.loops.get(number, 0) > 0 if most else progress.taken.get(number)
