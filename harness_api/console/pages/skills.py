"""Skills: ways to do some kind of work, kept in versions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor
from harness_api.routes import skills
from harness_common.contracts.names import Name

router = new_pages("/console/skills")

CanRead = Annotated[Visit, requires_page("skills:read")]
LIMIT = 50
_VERSIONS = 50


@router.get("")
async def skills_page(services: Use, visit: CanRead, cursor: IdCursor = None) -> Response:
    """List the newest version of each skill."""
    found = await skills.get_skills(services, visit.caller, limit=LIMIT, cursor=cursor)
    return visit.page(
        "skills.html", skills=found.data, next_cursor=found.next_cursor, cursor=cursor
    )


@router.get("/{name}")
async def skill_page(
    name: Name,
    services: Use,
    visit: CanRead,
    version: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """Show a version of a skill, by default the newest."""
    found = await skills.get_versions(name, services, visit.caller, limit=_VERSIONS)
    one = found.data[0]
    if version is not None:
        one = await skills.get_version(name, version, services, visit.caller)
    return visit.page("skill.html", one=one, versions=found.data)
