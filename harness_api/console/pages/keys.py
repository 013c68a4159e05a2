"""API keys: who may what; making one, whose secret is shown once, and taking one back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

from fastapi import Response

from harness_api.auth import ROLES
from harness_api.console.access import requires_page
from harness_api.console.routing import new_pages
from harness_api.console.visit import Visit
from harness_api.deps import Use
from harness_api.paging import IdCursor
from harness_api.routes import api_keys
from harness_api.routes.ids import KeyId
from harness_api.schemas.api_keys import ApiKeyCreate, ApiKeyCreated
from harness_common.core.errors import Invalid
from harness_common.core.ids import encode

router = new_pages("/console/keys")

CanRead = Annotated[Visit, requires_page("keys:read")]
CanWrite = Annotated[Visit, requires_page("keys:write")]
LIMIT: Final = 50
_DAYS_MAX: Final = 3_650


@router.get("")
async def keys_page(services: Use, visit: CanRead, cursor: IdCursor = None) -> Response:
    """List keys, newest first, dead ones included."""
    found = await api_keys.get_keys(services, visit.caller, limit=LIMIT, cursor=cursor)
    return visit.page(
        "keys.html",
        keys=found.data,
        next_cursor=found.next_cursor,
        cursor=cursor,
        now=datetime.now(UTC),
        roles=[role for role in ROLES if visit.caller.may_give(role, ())],
    )


@router.post("")
async def make(services: Use, visit: CanWrite) -> Response:
    """Make a key and show its secret, this once."""
    role: Any = visit.form.get("role", "")
    body = ApiKeyCreate(
        name=visit.form.get("name", "").strip(),
        role=role,
        expires_at=_expiry(visit.form.get("days", "")),
    )
    return _made(visit, await api_keys.post_key(body, Response(), services, visit.caller))


@router.post("/{key_id}/rotate")
async def rotate(key_id: KeyId, services: Use, visit: CanWrite) -> Response:
    """Make a successor and show its secret, this once."""
    return _made(visit, await api_keys.post_rotate(key_id, Response(), services, visit.caller))


@router.post("/{key_id}/revoke")
async def revoke(key_id: KeyId, services: Use, visit: CanWrite) -> Response:
    """End a key."""
    await api_keys.delete_key(key_id, services, visit.caller)
    return visit.go("/console/keys", f"Revoked {encode('api_key', key_id)}.")


def _made(visit: Visit, key: ApiKeyCreated) -> Response:
    if visit.htmx:
        return visit.part("_secret.html", title=f"The key {key.name!r}", secret=key.secret)
    return visit.page("secret.html", title=f"The key {key.name!r}", secret=key.secret, back="keys")


def _expiry(days: str) -> datetime | None:
    """Read for how many days a key lives; an empty field is for good."""
    if not days.strip():
        return None
    if not days.strip().isdecimal() or not 1 <= int(days) <= _DAYS_MAX:
        raise Invalid(f"days is a number from 1 to {_DAYS_MAX:,}, or empty", field="days")
    return datetime.now(UTC) + timedelta(days=int(days))
