"""The pages, one module each. A new one is added to this list, and to `nav.NAV`."""

from typing import Final

from fastapi import APIRouter

from harness_api.console import static
from harness_api.console.pages import (
    agents,
    approvals,
    audit,
    bulk,
    effects,
    keys,
    login,
    memories,
    missing,
    overview,
    run,
    run_control,
    runs,
    schedules,
    sessions,
    skills,
    tenants,
    throttles,
    tools,
    webhooks,
    workers,
)

PAGES: Final[tuple[APIRouter, ...]] = (
    static.router,
    login.router,
    overview.router,
    runs.router,
    bulk.router,  # before run: /console/runs/bulk is no run
    run.router,
    run_control.router,
    sessions.router,
    approvals.router,
    effects.router,
    agents.router,
    tools.router,
    skills.router,
    memories.router,
    schedules.router,
    webhooks.router,
    workers.router,
    throttles.router,
    tenants.router,
    keys.router,
    audit.router,
    missing.router,  # the last one: it takes every path
)
