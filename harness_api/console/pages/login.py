"""Logging in to the console with an API key, and out."""

from __future__ import annotations

import time
from typing import Annotated, Final

import structlog
from fastapi import Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from harness_api.console.access import caller_of, read_form, require_own_origin
from harness_api.console.render import render
from harness_api.console.routing import new_pages
from harness_api.deps import Services, Use
from harness_common.core.ids import encode
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row

log = structlog.get_logger()
router = new_pages("/console")

HOME: Final = "/console"
TRIES: Final = 10
"""Failed logins of one address in `_WINDOW_S` before it has to wait."""
_WINDOW_S: Final = 60.0
_MOST: Final = 10_000


class Tries:
    """Counts the failed logins of each address. Of this process alone: a key has 256 random bits,
    this only keeps the noise down.
    """

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self._window_s = window_s
        self._failed: dict[str, list[float]] = {}

    def wait_s(self, address: str, now: float) -> float:
        """Return how long an address has to wait; 0 when it may try."""
        recent = self._recent(address, now)
        return recent[-TRIES] + self._window_s - now if len(recent) >= TRIES else 0.0

    def failed(self, address: str, now: float) -> None:
        """Note a failure."""
        if len(self._failed) >= _MOST:
            self._failed.clear()
        self._failed[address] = [*self._recent(address, now)[-TRIES:], now]

    def _recent(self, address: str, now: float) -> list[float]:
        return [t for t in self._failed.get(address, ()) if t > now - self._window_s]


def _tries(request: Request) -> Tries:
    state = request.app.state
    if not hasattr(state, "console_tries"):
        state.console_tries = Tries()
    found: Tries = state.console_tries
    return found


def safe_next(path: str) -> str:
    """Return where to go after the login: a path of ours, never another site."""
    inside = path.startswith(("/console", "/flower")) and "\\" not in path and "//" not in path
    return path if inside else HOME


def _form(
    request: Request, target: str, problem: str = "", status: int = 200, wait_s: float = 0
) -> Response:
    text = render(request, "login.html", target=target, problem=problem)
    headers = {"Retry-After": str(int(wait_s) + 1)} if wait_s else {}
    return HTMLResponse(text, status, headers=headers)


@router.get("/login")
async def login_page(
    request: Request, next_: Annotated[str, Query(alias="next", max_length=2_000)] = HOME
) -> Response:
    """Ask for a key; who has a session goes on."""
    target = safe_next(next_)
    if await caller_of(request) is not None:
        return RedirectResponse(target, 303)
    return _form(request, target)


@router.post("/login")
async def log_in(request: Request, services: Use) -> Response:
    """Begin a session for who has a live key."""
    require_own_origin(request)
    form = dict(await read_form(request))
    target, text = safe_next(form.get("next", HOME)), form.get("key", "").strip()
    address, now = request.client.host if request.client else "", time.monotonic()
    tries = _tries(request)
    if wait_s := tries.wait_s(address, now):
        problem = f"Too many failed logins from your address. Try again in {int(wait_s) + 1} s."
        return _form(request, target, problem, 429, wait_s)
    found = await services.keyring.verify(text)
    if found is None:
        tries.failed(address, now)
        log.info("console.login_failed", address=address)
        problem = "This key is unknown, revoked or expired. A key looks like hk_…_…"
        return _form(request, target, problem, 401)
    row, _ = found
    await _note(services, request, row)
    answer = RedirectResponse(target, 303)
    services.sessions.begin(answer, row["public_id"], https=request.url.scheme == "https")
    return answer


async def _note(services: Services, request: Request, row: Row) -> None:
    """Write the login into the audit trail."""
    name = encode("api_key", row["id"])
    actor = Actor(name, request.scope["state"]["request_id"])
    async with services.db.tenant_transaction(row["tenant_id"]) as conn:
        entry = Entry("console.login", name, {"role": row["role"]})
        record(conn, row["tenant_id"], actor, entry)


@router.post("/logout")
async def log_out(request: Request, services: Use) -> Response:
    """End the session of this browser."""
    require_own_origin(request)
    answer = RedirectResponse("/console/login", 303)
    services.sessions.end(answer)
    return answer
