"""The routes, one file a resource. A new one is added to this list."""

from typing import Final

from fastapi import APIRouter

from harness_api.routes import (
    agents,
    api_keys,
    approvals,
    artifacts,
    effects,
    egress,
    health,
    mcp_servers,
    platform,
    policies,
    responses,
    run_control,
    run_details,
    run_events,
    runs,
    schedules,
    secrets,
    sessions,
    tenant,
    throttles,
    tool_breakers,
    tools,
    webhooks,
)

ROUTERS: Final[tuple[APIRouter, ...]] = (
    runs.router,
    run_control.router,
    run_events.router,
    run_details.router,
    responses.router,
    approvals.router,
    effects.router,
    policies.router,
    artifacts.router,
    agents.router,
    tool_breakers.router,  # before tools: /v1/tools/breakers is no tool
    tools.router,
    egress.router,
    webhooks.router,
    sessions.router,
    schedules.router,
    mcp_servers.router,
    api_keys.router,
    secrets.router,
    tenant.router,
    throttles.router,
    platform.router,
    health.router,
)
