"""Who may open a page: every console route states a permission, as the routes under /v1 do.

A person without a session is sent to the login. A request that changes something has to come from
our own pages: by what the browser says about its origin, and by a token in the form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

import structlog
from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection

from harness_api.auth import PERMISSIONS, Caller, Keyring, caller_of_key, dependencies_of
from harness_api.console.session import COOKIE, Session, Sessions
from harness_api.console.visit import Visit
from harness_api.load import take_place
from harness_common.core.errors import Denied, Invalid, Unauthenticated
from harness_common.core.ids import encode

PREFIX: Final = "/console"
OPEN: Final = frozenset({"/console/login", "/console/logout", "/console/static/{name:path}"})
"""Routes for everybody."""
_SAFE: Final = frozenset({"GET", "HEAD"})
_FIELDS: Final = 2_000
TOKEN_FIELD: Final = "csrf"  # noqa: S105 - the name of a field
TOKEN_HEADER: Final = "x-csrf-token"  # noqa: S105 - the name of a header


async def caller_of(connection: HTTPConnection) -> tuple[Caller, Session, str] | None:
    """Return who is logged in, the session, and the name of the key; None for nobody.

    For every face that people reach by the console's login.
    """
    services = connection.app.state.services
    sessions: Sessions = services.sessions
    session = sessions.read(connection.cookies.get(COOKIE))
    if session is None:
        return None
    keyring: Keyring = services.keyring
    found = await keyring.find(session.public_id)
    if found is None:
        return None
    row, permissions = found
    rid = connection.scope["state"]["request_id"]
    return caller_of_key(row, permissions, rid), session, row["name"]


class RequiresPage:
    """The dependency that a console route carries: lets in people that have `permission`."""

    def __init__(self, permission: str) -> None:
        if permission not in PERMISSIONS:
            raise ValueError(f"unknown permission {permission!r}")
        self.permission = permission

    async def __call__(self, request: Request) -> Visit:
        """Find out who asks; raises `Unauthenticated` (which leads to the login) or `Denied`."""
        found = await caller_of(request)
        if found is None:
            raise Unauthenticated("log in with an API key")
        caller, session, key_name = found
        structlog.contextvars.bind_contextvars(
            tenant_id=encode("tenant", caller.tenant_id), key_id=caller.name
        )
        take_place(request.scope, caller.key_id)
        if self.permission not in caller.permissions:
            raise Denied(
                f"this key (role {caller.role}) lacks the permission {self.permission}; "
                "log in with one that has it",
                permission=self.permission,
            )
        sessions: Sessions = request.app.state.services.sessions
        form: Mapping[str, str] = {}
        fields: list[tuple[str, str]] = []
        if request.method not in _SAFE:
            require_own_origin(request)
            fields = await read_form(request)
            form = dict(fields)
            given = form.get(TOKEN_FIELD) or request.headers.get(TOKEN_HEADER, "")
            if not sessions.is_token(session, given):
                raise Denied("this form is from another session; load the page again")
        return Visit(request, caller, key_name, sessions.token(session), form, fields)


def requires_page(permission: str) -> Any:  # noqa: ANN401 - what FastAPI takes for a dependency
    """State the permission of a page: `visit: Annotated[Visit, <this>]`."""
    return Depends(RequiresPage(permission))


def require_own_origin(request: Request) -> None:
    """Refuse a request that a page of another site has sent."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        own = site == "same-origin"
    else:
        host = request.headers.get("host", "")
        own = request.headers.get("origin") in {f"http://{host}", f"https://{host}"}
    if not own:
        raise Denied("this request did not come from the console; open the page and try there")


async def read_form(request: Request) -> list[tuple[str, str]]:
    """Read the fields of a form, in order; what is no form has none."""
    if "application/x-www-form-urlencoded" not in request.headers.get("content-type", ""):
        return []
    text = (await request.body()).decode("utf-8", "replace")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS)
    except ValueError:
        raise Invalid(f"a form has at most {_FIELDS} fields", limit=_FIELDS) from None
    return [(name, value.replace("\x00", "")) for name, value in pairs]


def rule_of(route: APIRoute) -> str | None:
    """Return the permission that a page states; None when it states none."""
    calls = dependencies_of(route.dependant)
    return next((c.permission for c in calls if isinstance(c, RequiresPage)), None)


def check_rules(app: FastAPI) -> None:
    """Refuse to build an app that has a route under /console without a rule."""
    bare = [
        path
        for route in app.routes
        if (path := str(getattr(route, "path", ""))).startswith(PREFIX)
        and path not in OPEN
        and (not isinstance(route, APIRoute) or rule_of(route) is None)
    ]
    if bare:
        raise RuntimeError(f"console routes without a rule: {', '.join(bare)}")
