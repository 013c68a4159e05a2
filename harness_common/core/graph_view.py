"""How far the nodes of a run are, as people are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness_common.core.graph import Graph
from harness_common.core.graph_draw import Shown
from harness_common.core.graph_log import Asked
from harness_common.core.graph_progress import PENDING, RUNNING, NodeState, Progress
from harness_common.core.message import Json


def shown_nodes(
    progress: Progress, asked: Sequence[Asked], waiting: Json, *, is_over: bool
) -> Mapping[str, Shown]:
    """Return how far each node is; `waiting` is what the run says that it waits for. In a run that
    is over nothing is under way any more.
    """
    waits = set() if is_over else _waiting_nodes(asked, waiting)
    return {
        key: _shown(progress.graph, key, one, waits=key in waits, is_over=is_over)
        for key, one in progress.nodes.items()
    }


def _shown(graph: Graph, key: str, one: NodeState, *, waits: bool, is_over: bool) -> Shown:
    status = one.status
    if waits and status == RUNNING:
        status = "waiting"
    elif is_over and status == RUNNING:
        status = PENDING
    items = len(one.items) if graph.nodes[key].is_map and one.items is not None else None
    return Shown(status, one.visit, one.done if items is not None else None, items)


def _waiting_nodes(asked: Sequence[Asked], waiting: Json) -> set[str]:
    if not isinstance(waiting, dict):
        return set()
    calls = waiting.get("calls")
    if not calls:  # a time, or a limit: all that is under way waits for it
        return {one.node for one in asked}
    indexes = (int((c["call"] if isinstance(c, dict) else c).split(".")[1]) for c in calls)
    return {asked[i].node for i in indexes if i < len(asked)}
