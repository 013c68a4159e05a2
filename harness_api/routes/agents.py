"""Agents: put a definition, read its versions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from harness_api.agent_diff import diff_specs
from harness_api.aside import aside
from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.graph_faults import check_graph
from harness_api.paging import IdCursor, Limit, NumberCursor, id_of, page
from harness_api.routing import new_router
from harness_api.schemas.agents import AgentDiff, AgentPut, AgentPutView, AgentView
from harness_api.schemas.base import Page
from harness_common.contracts.agent import Name
from harness_common.core.handoff import agent_of, is_agent_tool
from harness_common.core.ids import encode
from harness_common.store.agents import list_agents, list_versions, put_agent, read_agent
from harness_common.store.connection import Row
from harness_common.store.skill_pins import missing_skills
from harness_common.store.tools import missing_tools

router = new_router("/v1/agents", "agents")

CanRead = Annotated[Caller, requires("agents:read")]
CanWrite = Annotated[Caller, requires("agents:write")]


def agent_view(row: Row) -> AgentView:
    """Show one version of an agent."""
    return AgentView(
        id=encode("agent", row["id"]),
        name=row["name"],
        version=row["version"],
        spec=row["spec"],
        digest=row["digest"],
        created_at=row["created_at"],
        created_by=row["created_by"],
    )


@router.post(
    "",
    status_code=201,
    operation_id="putAgent",
    response_model=AgentPutView,
    responses={
        200: {"model": AgentPutView, "description": "Unchanged: the newest version is the same."}
    },
)
async def post_agent(
    body: AgentPut, response: Response, services: Use, caller: CanWrite
) -> AgentPutView:
    """Add a version of an agent; a definition equal to the newest version changes nothing.

    `warnings` names tools that neither the tenant nor a live worker has: until one does, a run
    waits for it and then fails. A graph is checked as a whole: 422 `GRAPH_INVALID` lists every
    fault in `errors`, each with its place.
    """
    spec = body.spec.plain()
    await check_graph(services.db, caller.tenant_id, spec)
    row, made = await put_agent(services.db, caller.tenant_id, body.name, spec, caller.actor)
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"/v1/agents/{row['name']}/versions/{row['version']}"
    names = dict.fromkeys((*spec.with_handoffs().tools, *spec.may_use))
    missing = await missing_tools(services.db, caller.tenant_id, tuple(names))
    warnings = [_warning(name) for name in missing]
    skills = await missing_skills(services.db, caller.tenant_id, spec.skills)
    warnings += [f"there is no skill {ref!r}: a run is refused until there is" for ref in skills]
    return AgentPutView(**agent_view(row).model_dump(), warnings=warnings)


def _warning(name: str) -> str:
    if is_agent_tool(name):
        return f"{name!r} needs an agent {agent_of(name)!r}, which is not there yet"
    return f"no live worker and no tool of the tenant is called {name!r}; see `harness tools list`"


@router.get("", operation_id="listAgents", response_model=Page[AgentView])
async def get_agents(
    services: Use, caller: CanRead, limit: Limit = 50, cursor: IdCursor = None
) -> Page[AgentView]:
    """List the newest version of each agent, last changed first."""
    rows = await list_agents(services.db, caller.tenant_id, before=id_of(cursor), limit=limit + 1)
    data, next_cursor = page(rows, limit, agent_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{name}", operation_id="getAgent", response_model=AgentView)
async def get_agent(name: Name, services: Use, caller: CanRead) -> AgentView:
    """Read the newest version of an agent."""
    return agent_view(await read_agent(services.db, caller.tenant_id, name))


@router.get("/{name}/versions", operation_id="listAgentVersions", response_model=Page[AgentView])
async def get_versions(
    name: Name, services: Use, caller: CanRead, limit: Limit = 50, cursor: NumberCursor = None
) -> Page[AgentView]:
    """List the versions of an agent, newest first."""
    before = int(cursor) if cursor else None
    rows = await list_versions(services.db, caller.tenant_id, name, before=before, limit=limit + 1)
    data, next_cursor = page(rows, limit, agent_view, "version")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{name}/versions/{version}", operation_id="getAgentVersion", response_model=AgentView)
async def get_version(
    name: Name,
    version: Annotated[int, Path(ge=1, lt=2**31)],
    services: Use,
    caller: CanRead,
) -> AgentView:
    """Read one version of an agent."""
    return agent_view(await read_agent(services.db, caller.tenant_id, name, version))


@router.get("/{name}/diff", operation_id="diffAgentVersions", response_model=AgentDiff)
async def get_diff(
    name: Name,
    services: Use,
    caller: CanRead,
    from_version: Annotated[
        int | None, Query(ge=1, lt=2**31, description="Default: the one before `to_version`.")
    ] = None,
    to_version: Annotated[
        int | None, Query(ge=1, lt=2**31, description="Default: the newest.")
    ] = None,
) -> AgentDiff:
    """Compare two versions of an agent; nothing differs between the first and itself."""
    after = await read_agent(services.db, caller.tenant_id, name, to_version)
    earlier = from_version or max(after["version"] - 1, 1)
    before = await read_agent(services.db, caller.tenant_id, name, earlier)
    return AgentDiff(
        name=name,
        from_version=before["version"],
        to_version=after["version"],
        changes=await aside(lambda: diff_specs(before["spec"], after["spec"])),
    )
