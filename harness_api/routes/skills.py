"""Skills: put a definition, read its versions."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor, Limit, NumberCursor, id_of, page
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.skills import SkillPut, SkillPutView, SkillView
from harness_common.contracts.names import Name
from harness_common.contracts.skill import SkillSpec
from harness_common.core.errors import Invalid, NotFound
from harness_common.core.ids import decode, encode
from harness_common.core.mcp import wildcards
from harness_common.store.agents import read_agent
from harness_common.store.connection import Row
from harness_common.store.run_reads import read_artifact_row
from harness_common.store.skills import list_skills, list_versions, put_skill, read_skill
from harness_common.store.tools import missing_tools, tools_at_workers

router = new_router("/v1/skills", "skills")

CanRead = Annotated[Caller, requires("skills:read")]
CanWrite = Annotated[Caller, requires("skills:write")]


def skill_view(row: Row) -> SkillView:
    """Show one version of a skill."""
    return SkillView(
        id=encode("skill", row["id"]),
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
    operation_id="putSkill",
    response_model=SkillPutView,
    responses={
        200: {"model": SkillPutView, "description": "Unchanged: the newest version is the same."}
    },
)
async def post_skill(
    body: SkillPut, response: Response, services: Use, caller: CanWrite
) -> SkillPutView:
    """Add a version of a skill; a definition equal to the newest version changes nothing.

    Tools, documents and the graph that it names have to be there: 422 names the field of one that
    is not. While no worker is alive, tools cannot be checked, and `warnings` says so.
    """
    spec = body.spec.plain()
    warnings = await _check(services, caller, spec)
    row, made = await put_skill(services.db, caller.tenant_id, body.name, spec, caller.actor)
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"/v1/skills/{row['name']}/versions/{row['version']}"
    return SkillPutView(**skill_view(row).model_dump(), warnings=warnings)


async def _check(services: Services, caller: Caller, spec: SkillSpec) -> list[str]:
    """Raise `Invalid` for what the skill names and nobody has; return what cannot be told."""
    db, tenant_id = services.db, caller.tenant_id
    for i, document in enumerate(spec.knowledge):
        if document.artifact is not None:
            try:
                await read_artifact_row(db, tenant_id, decode("artifact", document.artifact))
            except NotFound:
                raise _unknown(f"knowledge.{i}.artifact", "artifact", document.artifact) from None
    if spec.graph is not None:
        try:
            await read_agent(db, tenant_id, spec.graph)
        except NotFound:
            raise _unknown("graph", "agent", spec.graph) from None
    wild = set(wildcards(spec.tools))
    plain = tuple(name for name in spec.tools if name not in wild)
    missing = await missing_tools(db, tenant_id, plain)
    if missing and not await tools_at_workers(db):
        return [f"no worker is alive to say whether there is a tool {name!r}" for name in missing]
    for name in missing:
        raise _unknown(f"tools.{spec.tools.index(name)}", "tool", name)
    return []


def _unknown(field: str, kind: str, value: str) -> Invalid:
    advice = {
        "tool": "`harness tools list` shows those of the workers and the tenant",
        "agent": "make it first with `harness agents apply FILE`",
        "artifact": "`harness artifacts list` shows those of a run",
    }[kind]
    return Invalid(
        f"there is no {kind} {value!r}; {advice}",
        code="SKILL_INVALID",
        field=f"spec.{field}",
        value=value,
    )


@router.get("", operation_id="listSkills", response_model=Page[SkillView])
async def get_skills(
    services: Use, caller: CanRead, limit: Limit = 50, cursor: IdCursor = None
) -> Page[SkillView]:
    """List the newest version of each skill, last changed first."""
    rows = await list_skills(services.db, caller.tenant_id, before=id_of(cursor), limit=limit + 1)
    data, next_cursor = page(rows, limit, skill_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{name}", operation_id="getSkill", response_model=SkillView)
async def get_skill(name: Name, services: Use, caller: CanRead) -> SkillView:
    """Read the newest version of a skill."""
    return skill_view(await read_skill(services.db, caller.tenant_id, name))


@router.get("/{name}/versions", operation_id="listSkillVersions", response_model=Page[SkillView])
async def get_versions(
    name: Name, services: Use, caller: CanRead, limit: Limit = 50, cursor: NumberCursor = None
) -> Page[SkillView]:
    """List the versions of a skill, newest first."""
    before = int(cursor) if cursor else None
    rows = await list_versions(services.db, caller.tenant_id, name, before=before, limit=limit + 1)
    data, next_cursor = page(rows, limit, skill_view, "version")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{name}/versions/{version}", operation_id="getSkillVersion", response_model=SkillView)
async def get_version(
    name: Name,
    version: Annotated[int, Path(ge=1, lt=2**31)],
    services: Use,
    caller: CanRead,
) -> SkillView:
    """Read one version of a skill."""
    return skill_view(await read_skill(services.db, caller.tenant_id, name, version))
