"""The pages, one module each. A new one is added to this list, and to `nav.NAV`."""

from typing import Final

from fastapi import APIRouter

from harness_api.console import static
from harness_api.console.pages import login, missing, overview, run_control, runs

PAGES: Final[tuple[APIRouter, ...]] = (
    static.router,
    login.router,
    overview.router,
    runs.router,
    run_control.router,
    missing.router,  # the last one: it takes every path
)
