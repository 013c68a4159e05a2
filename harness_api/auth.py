"""Who may do what: API keys, roles and scopes, and the one dependency by which a route states its
permission.

Deny by default: `app` refuses to start when a route under /v1 has no `requires(...)`. A verified
key is kept for a few seconds, so that the hot path costs one HMAC and no query; a revoked key
therefore lives on in other processes for at most that long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, get_args
from uuid import UUID

import structlog
from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from harness_api.load import take_place
from harness_api.schemas.api_keys import Permission, Role
from harness_common.core.errors import Denied, Transient, Unauthenticated
from harness_common.core.ids import encode
from harness_common.store import keys
from harness_common.store.audit import Actor
from harness_common.store.connection import Row
from harness_common.store.db import Database

PERMISSIONS: Final[frozenset[str]] = frozenset(get_args(Permission))
PLATFORM: Final = frozenset({"platform:read", "platform:write"})
"""Permissions that only keys of an operator's tenant have."""
_READS: Final = frozenset(
    f"{noun}:read"
    for noun in (
        "runs",
        "agents",
        "sessions",
        "schedules",
        "artifacts",
        "approvals",
        "effects",
        "policies",
        "secrets",
        "tools",
        "egress",
        "webhooks",
        "tenant",
        "workers",
        "mcp",
        "memories",
        "skills",
    )
)
ROLES: Final[dict[Role, frozenset[str]]] = {
    "viewer": _READS,
    "operator": _READS
    | {"runs:write", "agents:write", "sessions:write", "schedules:write"}
    | {"memories:write", "skills:write"},
    "approver": _READS | {"approvals:write", "effects:write"},
    "admin": PERMISSIONS,
}
CACHE_S: Final = 5.0
_CACHE_MAX: Final = 10_000
_BEARER: Final = HTTPBearer(
    auto_error=False, scheme_name="ApiKey", description="An API key: `hk_<public id>_<secret>`."
)


@dataclass(frozen=True, slots=True)
class Caller:
    """The verified key behind a request, and what it may do."""

    tenant_id: UUID
    key_id: UUID
    role: Role
    permissions: frozenset[str]
    request_id: str = ""
    operator: bool = False
    """Whether the key's tenant runs the platform."""
    public_id: str = ""
    """By which the key is looked up again while an answer goes on."""

    @property
    def name(self) -> str:
        """Name the caller in audit rows and on what it makes."""
        return encode("api_key", self.key_id)

    @property
    def actor(self) -> Actor:
        """The caller as the audit trail names it."""
        return Actor(self.name, self.request_id)

    def may_give(self, role: Role, scopes: Iterable[str]) -> bool:
        """Tell whether a key with these rights would have none that the caller lacks."""
        return permissions_of(role, scopes, operator=self.operator) <= self.permissions


def permissions_of(role: Role, scopes: Iterable[str], *, operator: bool = False) -> frozenset[str]:
    """Return what a key may do: all that its role allows, narrowed by its scopes if it has any."""
    wanted = frozenset(scopes)
    allowed = ROLES[role] if operator else ROLES[role] - PLATFORM
    return allowed & wanted if wanted else allowed


@dataclass(slots=True)
class _Known:
    row: Row
    permissions: frozenset[str]
    until: float
    """Monotonic time at which the row is read again; never later than the key's expiry."""


@dataclass(slots=True)
class Keyring:
    """Verifies keys and remembers them for `cache_s`."""

    db: Database
    pepper: bytes
    cache_s: float = CACHE_S
    _known: dict[str, _Known | float] = field(default_factory=dict)
    """By public id; a number is the time until which a public id is known not to exist."""

    async def verify(self, text: str) -> tuple[Row, frozenset[str]] | None:
        """Return the row and the permissions of a live key; None for anything else."""
        parsed = keys.parse(text)
        if parsed is None:
            return None
        public_id, secret = parsed
        known = self._known.get(public_id)
        now = time.monotonic()
        if isinstance(known, float) and known > now:
            return None
        if isinstance(known, _Known) and known.until > now:
            ok = keys.verify(self.pepper, public_id, secret, known.row["secret_hash"])
            return (known.row, known.permissions) if ok else None
        return await self._look_up(public_id, secret)

    async def find(self, public_id: str) -> tuple[Row, frozenset[str]] | None:
        """Return the row and the permissions of a live key whose secret was verified before: by
        the login of the console, whose cookie names the key.
        """
        known = self._known.get(public_id)
        now = time.monotonic()
        if isinstance(known, float) and known > now:
            return None
        if not (isinstance(known, _Known) and known.until > now):
            known = await self._read(public_id)
            if known is not None and known.row["touch_due"]:
                await keys.touch_key(self.db, known.row["tenant_id"], known.row["id"])
        return (known.row, known.permissions) if known is not None else None

    async def _look_up(self, public_id: str, secret: str) -> tuple[Row, frozenset[str]] | None:
        known = await self._read(public_id)
        if known is None:
            return None
        row = known.row
        if not keys.verify(self.pepper, public_id, secret, row["secret_hash"]):
            return None
        if row["touch_due"]:
            await keys.touch_key(self.db, row["tenant_id"], row["id"])
        return row, known.permissions

    async def _read(self, public_id: str) -> _Known | None:
        """Read a key and remember what was found; None when it is not alive."""
        row = await keys.find_key(self.db, public_id)
        now = time.monotonic()
        if len(self._known) >= _CACHE_MAX:
            self._known.clear()
        lives_s = self.cache_s
        if row is not None and row["expires_in_s"] is not None:
            lives_s = min(lives_s, row["expires_in_s"])
        if row is None or row["revoked"] or lives_s <= 0:
            self._known[public_id] = now + self.cache_s
            return None
        permissions = permissions_of(row["role"], row["scopes"], operator=row["operator"])
        known = _Known(row, permissions, now + lives_s)
        self._known[public_id] = known
        return known

    async def lives(self, public_id: str) -> bool:
        """Tell whether a key is still alive, for answers that go on for hours; while Postgres is
        away it is.
        """
        try:
            return await self.find(public_id) is not None
        except Transient:
            return True

    def forget(self, public_id: str) -> None:
        """Read a key again at its next use."""
        self._known.pop(public_id, None)


class Requires:
    """The dependency that a route carries: lets in callers that have `permission`."""

    def __init__(self, permission: str) -> None:
        if permission not in PERMISSIONS:
            raise ValueError(f"unknown permission {permission!r}")
        self.permission = permission

    async def __call__(
        self,
        request: Request,
        credentials: HTTPAuthorizationCredentials | None = Depends(_BEARER),
    ) -> Caller:
        """Verify the key of a request; raises `Unauthenticated`, `Denied` or `Limited`."""
        if credentials is None:
            raise Unauthenticated("send an API key: `Authorization: Bearer hk_...`")
        keyring: Keyring = request.app.state.services.keyring
        found = await keyring.verify(credentials.credentials)
        if found is None:
            raise Unauthenticated("the API key is unknown, revoked or expired")
        row, permissions = found
        structlog.contextvars.bind_contextvars(
            tenant_id=encode("tenant", row["tenant_id"]), key_id=encode("api_key", row["id"])
        )
        take_place(request.scope, row["id"])
        if self.permission not in permissions:
            raise Denied(
                f"this key (role {row['role']}) lacks the permission {self.permission}",
                permission=self.permission,
            )
        rid = request.scope["state"]["request_id"]
        return caller_of_key(row, permissions, rid)


def caller_of_key(row: Row, permissions: frozenset[str], rid: str) -> Caller:
    """Return who asks, from the row of a live key."""
    return Caller(
        row["tenant_id"], row["id"], row["role"], permissions, rid, row["operator"],
        row["public_id"],
    )  # fmt: skip


def requires(permission: str) -> Any:  # noqa: ANN401 - what FastAPI takes for a dependency
    """State the permission of a route: `caller: Annotated[Caller, <this>]`."""
    return Depends(Requires(permission))


def permission_of(route: APIRoute) -> str | None:
    """Return the permission that a route states; None when it states none."""
    calls = dependencies_of(route.dependant)
    return next((c.permission for c in calls if isinstance(c, Requires)), None)


def dependencies_of(dependant: Dependant) -> Iterator[object]:
    """Return what a route calls before it answers."""
    yield dependant.call
    for inner in dependant.dependencies:
        yield from dependencies_of(inner)
