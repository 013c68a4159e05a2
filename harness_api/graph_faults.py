"""What is wrong with a graph that is put: every fault, each with its place. Used by the agents
route.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from harness_common.contracts.agent import AgentSpec
from harness_common.contracts.graph_compile import compiled, tools_of, unknown_ends
from harness_common.core.errors import Invalid
from harness_common.core.graph_check import MOST_FAULTS, Fault, faults
from harness_common.store.db import Database
from harness_common.store.tools import missing_tools, tools_at_workers


async def check_graph(db: Database, tenant_id: UUID, spec: AgentSpec) -> None:
    """Refuse a graph that cannot run; raises `Invalid` (`GRAPH_INVALID`) with all its faults.

    A tool that nobody has is a fault while workers are there to tell their tools; before any is
    started it is a warning, as with other agents.
    """
    if spec.graph is None:
        return
    found = [
        Fault(place, "UNKNOWN_NODE", f"there is no node {name!r} here")
        for name, place in unknown_ends(spec.graph)
    ]
    if not found:
        try:
            found = faults(compiled(spec.graph))
        except RecursionError:
            found = [Fault("/graph", "TOO_DEEP", "a value is nested too deep")]
    found += await _unknown_tools(db, tenant_id, spec)
    if found:
        _refuse(found[:MOST_FAULTS])


async def _unknown_tools(db: Database, tenant_id: UUID, spec: AgentSpec) -> list[Fault]:
    assert spec.graph is not None
    used = list(tools_of(spec.graph))
    not_allowed = {name for name, _ in used} - set(spec.may_use)
    names = tuple(dict.fromkeys(name for name, _ in used))
    missing = set(await missing_tools(db, tenant_id, names))
    if missing and not await tools_at_workers(db):
        missing = set()
    return [
        Fault(place, "UNKNOWN_TOOL", _why(name, name in not_allowed))
        for name, place in used
        if name in missing | not_allowed
    ]


def _why(name: str, is_not_allowed: bool) -> str:
    if is_not_allowed:
        return f"the tool {name!r} is not among the agent's `tools`: add it, or leave `tools` out"
    return (
        f"no live worker and no tool of the tenant is called {name!r}; see `harness tools list`, "
        "or start workers with `--tools` and its module first"
    )


def _refuse(found: Sequence[Fault]) -> None:
    first = found[0]
    more = f" (and {len(found) - 1} more faults, see `errors`)" if len(found) > 1 else ""
    raise Invalid(
        f"{first.told}{more}",
        code="GRAPH_INVALID",
        field=first.place,
        errors=[one.to_json() for one in found],
    )
