"""Tools: those of the tenant, which are data, and those that workers have."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Response

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import Limit, NumberCursor, page
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.tools import (
    ImportedTool,
    SkippedOperation,
    ToolDefinitionInput,
    ToolImport,
    ToolImported,
    ToolList,
    ToolName,
    ToolView,
)
from harness_common.contracts.http_tool import as_definition, check_definition
from harness_common.contracts.openapi_tools import Wanted, read_openapi
from harness_common.contracts.tool import TIMEOUT_S, Reach
from harness_common.store import tools as store
from harness_common.store.connection import Row

router = new_router("/v1/tools", "tools")

CanRead = Annotated[Caller, requires("tools:read")]
CanWrite = Annotated[Caller, requires("tools:write")]
_SHARED = (
    "description", "risk", "cost_estimate_usd", "outbound", "reads_private", "untrusted_output",
    "repeatable", "max_attempts", "cache_s", "fallback", "input_schema",
)  # fmt: skip


def tool_view(row: Row) -> ToolView:
    """Show a version of a tenant's tool."""
    definition = as_definition(row["definition"])
    state = "removed" if row["removed_at"] else "disabled" if row["disabled"] else "enabled"
    return ToolView(
        name=row["name"],
        version=str(row["version"]),
        source="tenant",
        kind=definition.kind,
        status=state,
        effect=definition.effect_class.value,
        permission_tags=list(definition.permission_tags),
        sandbox="none",
        timeout_s=definition.timeout_s,
        queues=[],
        digest=row["digest"],
        created_at=row["created_at"],
        created_by=row["created_by"],
        definition=definition.model_dump(mode="json"),
        **{name: getattr(definition, name) for name in _SHARED},
    )


def worker_tool_view(row: Row) -> ToolView:
    """Show a tool that workers have."""
    spec: dict[str, Any] = row["spec"]
    return ToolView(
        name=row["name"],
        version=spec["version"],
        source="worker",
        kind="local",
        status="enabled",
        effect=spec["effect"],
        permission_tags=spec["permission_tags"],
        sandbox=spec["sandbox"],
        timeout_s=spec["timeout_s"] or TIMEOUT_S[Reach(spec["reach"])],
        queues=row["queues"],
        digest=row["digest"],
        created_at=row["created_at"],
        created_by=None,
        definition=None,
        **{name: spec[name] for name in _SHARED},
    )


@router.get("", operation_id="listTools", response_model=ToolList)
async def get_tools(services: Use, caller: CanRead) -> ToolList:
    """List all tools: the tenant's own that are not removed, and those of live workers."""
    own = [tool_view(row) for row in await store.list_tools(services.db, caller.tenant_id)]
    theirs = [worker_tool_view(row) for row in await store.tools_at_workers(services.db)]
    return ToolList(data=sorted(own + theirs, key=lambda tool: tool.name))


@router.post(
    "",
    status_code=201,
    operation_id="putTool",
    response_model=ToolView,
    responses={
        200: {"model": ToolView, "description": "Unchanged: the newest version is the same."}
    },
)
async def post_tool(
    body: ToolDefinitionInput, response: Response, services: Use, caller: CanWrite
) -> ToolView:
    """Add a version of a tool; it counts from the next step of every run. A definition equal to
    the newest version changes nothing.
    """
    definition = body.plain()
    check_definition(definition)
    row, made = await store.put_tool(services.db, caller.tenant_id, definition, caller.actor)
    response.status_code = 201 if made else 200
    response.headers["Location"] = f"/v1/tools/{row['name']}/versions/{row['version']}"
    return tool_view(row)


@router.post("/import", operation_id="importTools", response_model=ToolImported)
async def post_import(body: ToolImport, services: Use, caller: CanWrite) -> ToolImported:
    """Make tools of the operations of an OpenAPI document, or say what would be made."""
    wanted = Wanted(
        only=tuple(body.only),
        server=body.server,
        prefix=body.prefix,
        headers=body.headers,
        query=body.query,
        effects=body.effects,
    )
    found = read_openapi(body.document, wanted)
    made: list[ImportedTool] = []
    for item in found.tools:
        version, changed = None, True
        if not body.dry_run:
            row, changed = await store.put_tool(
                services.db, caller.tenant_id, item.definition, caller.actor
            )
            version = str(row["version"])
        made.append(
            ImportedTool(
                operation=item.operation,
                name=item.definition.name,
                version=version,
                changed=changed,
                effect=item.definition.effect_class.value,
                warnings=list(item.warnings),
                definition=item.definition.model_dump(mode="json"),
            )
        )
    skipped = [SkippedOperation(operation=s.operation, reason=s.reason) for s in found.skipped]
    return ToolImported(tools=made, skipped=skipped, dry_run=body.dry_run)


@router.get("/{name}", operation_id="getTool", response_model=ToolView)
async def get_tool(name: ToolName, services: Use, caller: CanRead) -> ToolView:
    """Read a tool: the version that counts."""
    for row in await store.tools_at_workers(services.db):
        if row["name"] == name:
            return worker_tool_view(row)
    return tool_view(await store.read_tool(services.db, caller.tenant_id, name))


@router.get("/{name}/versions", operation_id="listToolVersions", response_model=Page[ToolView])
async def get_versions(
    name: ToolName, services: Use, caller: CanRead, limit: Limit = 50, cursor: NumberCursor = None
) -> Page[ToolView]:
    """List the versions of a tenant's tool, newest first, also of a removed one."""
    before = int(cursor) if cursor else None
    rows = await store.list_tool_versions(
        services.db, caller.tenant_id, name, before=before, limit=limit + 1
    )
    data, next_cursor = page(rows, limit, tool_view, "version")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/{name}/versions/{version}", operation_id="getToolVersion", response_model=ToolView)
async def get_version(
    name: ToolName,
    version: Annotated[int, Path(ge=1, lt=2**31)],
    services: Use,
    caller: CanRead,
) -> ToolView:
    """Read one version of a tenant's tool."""
    return tool_view(await store.read_tool(services.db, caller.tenant_id, name, version))


@router.post("/{name}/enable", operation_id="enableTool", response_model=ToolView)
async def post_enable(name: ToolName, services: Use, caller: CanWrite) -> ToolView:
    """Let a tool be used again, from the next step of every run. Safe to repeat."""
    row = await store.set_tool(services.db, caller.tenant_id, name, caller.actor, disabled=False)
    return tool_view(row)


@router.post("/{name}/disable", operation_id="disableTool", response_model=ToolView)
async def post_disable(name: ToolName, services: Use, caller: CanWrite) -> ToolView:
    """Let every call of a tool be refused, from the next step of every run. Safe to repeat."""
    row = await store.set_tool(services.db, caller.tenant_id, name, caller.actor, disabled=True)
    return tool_view(row)


@router.delete("/{name}", status_code=204, operation_id="removeTool")
async def delete_tool(name: ToolName, services: Use, caller: CanWrite) -> None:
    """Take a tool away; its versions can still be read, for what was done with them."""
    await store.remove_tool(services.db, caller.tenant_id, name, caller.actor)
