"""Tools: what they may do, where they are to be had, and which of them fail now."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response

from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Services, Use
from harness_api.routes import model_breakers, tool_breakers, tools
from harness_api.routes.tool_breakers import Name as BreakerName
from harness_api.schemas.model_breakers import ModelBreakerView, ModelReset
from harness_api.schemas.tool_breakers import BreakerView
from harness_api.schemas.tools import ToolName

router = new_pages("/console/tools")

CanRead = Annotated[Visit, requires_page("tools:read")]
CanWrite = Annotated[Visit, requires_page("tools:write")]
CanReset = Annotated[Visit, requires_page("agents:write")]
_LIST = "/console/tools"
_VERSIONS = 20


async def _breakers(
    services: Services, visit: Visit
) -> tuple[dict[str, BreakerView], list[ModelBreakerView]]:
    """Return the breakers of tools by name, and those of models."""
    if not visit.may("workers:read"):
        return {}, []
    of_tools = await tool_breakers.get_breakers(services, visit.caller)
    of_models = await model_breakers.get_breakers(services, visit.caller)
    return {breaker.tool: breaker for breaker in of_tools.data}, of_models.data


@router.get("")
async def tools_page(services: Use, visit: CanRead) -> Response:
    """List all tools with their breakers."""
    found = await tools.get_tools(services, visit.caller)
    by_tool, models = await _breakers(services, visit)
    known = {tool.name for tool in found.data}
    gone = [b for name, b in by_tool.items() if name not in known]
    return visit.page("tools.html", tools=found.data, breakers=by_tool, gone=gone, models=models)


@router.post("/breakers/{tool}/reset")
async def reset(tool: BreakerName, services: Use, visit: CanReset) -> Response:
    """Close the breaker of a tool."""
    await tool_breakers.post_reset(tool, services, visit.caller)
    return visit.go(_LIST, f"The breaker of {tool} is closed: it is called again at once.")


@router.post("/models/reset")
async def reset_model(services: Use, visit: CanReset) -> Response:
    """Close the breaker of a model."""
    body = ModelReset(model=visit.form.get("model", ""))
    await model_breakers.post_reset(body, services, visit.caller)
    return visit.go(_LIST, f"The breaker of {body.model} is closed: it is asked again at once.")


@router.get("/{name}")
async def tool_page(name: ToolName, services: Use, visit: CanRead) -> Response:
    """Show a tool: the version that counts."""
    tool = await tools.get_tool(name, services, visit.caller)
    versions = []
    if tool.source == "tenant":
        found = await tools.get_versions(name, services, visit.caller, limit=_VERSIONS)
        versions = found.data
    by_tool, _ = await _breakers(services, visit)
    return visit.page("tool.html", tool=tool, versions=versions, breaker=by_tool.get(name))


@router.post("/{name}/enable")
async def enable(name: ToolName, services: Use, visit: CanWrite) -> Response:
    """Let a tool be used again."""
    await tools.post_enable(name, services, visit.caller)
    return visit.go(f"{_LIST}/{name}", "Enabled, from the next step of every run.")


@router.post("/{name}/disable")
async def disable(name: ToolName, services: Use, visit: CanWrite) -> Response:
    """Let every call of a tool be refused."""
    await tools.post_disable(name, services, visit.caller)
    return visit.go(f"{_LIST}/{name}", "Disabled, from the next step of every run.")
