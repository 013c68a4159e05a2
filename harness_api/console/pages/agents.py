"""Agents: their definitions, versions, and what changed between two of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor, NumberCursor
from harness_api.routes import agents
from harness_common.contracts.agent import Name

router = new_pages("/console/agents")

CanRead = Annotated[Visit, requires_page("agents:read")]
LIMIT = 50
_VERSIONS = 20


@router.get("")
async def agents_page(services: Use, visit: CanRead, cursor: IdCursor = None) -> Response:
    """List the newest version of each agent."""
    found = await agents.get_agents(services, visit.caller, limit=LIMIT, cursor=cursor)
    return visit.page(
        "agents.html", agents=found.data, next_cursor=found.next_cursor, cursor=cursor
    )


@router.get("/{name}")
async def agent_page(
    name: Name,
    services: Use,
    visit: CanRead,
    version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    cursor: NumberCursor = None,
) -> Response:
    """Show a version of an agent, by default the newest, and the list of versions."""
    newest = await agents.get_agent(name, services, visit.caller)
    agent = newest
    if version is not None:
        agent = await agents.get_version(name, version, services, visit.caller)
    found = await agents.get_versions(name, services, visit.caller, limit=_VERSIONS, cursor=cursor)
    return visit.page(
        "agent.html",
        agent=agent,
        newest=newest,
        versions=found.data,
        next_cursor=found.next_cursor,
        cursor=cursor,
    )


@router.get("/{name}/diff")
async def diff_page(
    name: Name,
    services: Use,
    visit: CanRead,
    from_version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
    to_version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """Show what changed between two versions."""
    found = await agents.get_diff(name, services, visit.caller, from_version, to_version)
    newest = await agents.get_agent(name, services, visit.caller)
    return visit.page("agent_diff.html", diff=found, newest=newest)
