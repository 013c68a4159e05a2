"""The routes, one file a resource. A new one is added to this list."""

from typing import Final

from fastapi import APIRouter

from harness_api.routes import (
    agents,
    api_keys,
    artifacts,
    effects,
    egress,
    health,
    platform,
    run_control,
    run_details,
    run_events,
    runs,
    schedules,
    sessions,
    tenant,
    throttles,
    tools,
    webhooks,
)

ROUTERS: Final[tuple[APIRouter, ...]] = (
    runs.router,
    run_control.router,
    run_events.router,
    run_details.router,
    effects.router,
    artifacts.router,
    agents.router,
    tools.router,
    egress.router,
    webhooks.router,
    sessions.router,
    schedules.router,
    api_keys.router,
    tenant.router,
    throttles.router,
    platform.router,
    health.router,
)
