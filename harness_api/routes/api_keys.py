"""API keys: make, list, rotate, revoke. No key can give away more than it may do itself, nor for
longer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Response

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.ids import KeyId
from harness_api.routing import new_router
from harness_api.schemas.api_keys import (
    ApiKeyCreate,
    ApiKeyCreated,
    ApiKeyRotate,
    ApiKeyView,
    Role,
)
from harness_api.schemas.base import Page
from harness_common.core.errors import Denied
from harness_common.core.ids import encode
from harness_common.store import keys
from harness_common.store.connection import Row

router = new_router("/v1/api-keys", "api keys")

CanRead = Annotated[Caller, requires("keys:read")]
CanWrite = Annotated[Caller, requires("keys:write")]


def key_view(row: Row) -> ApiKeyView:
    """Show a key without its secret."""
    source = row["rotated_from"]
    return ApiKeyView(
        id=encode("api_key", row["id"]),
        name=row["name"],
        public_id=row["public_id"],
        role=row["role"],
        scopes=row["scopes"],
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        revoked_at=row["revoked_at"],
        last_used_at=row["last_used_at"],
        rotated_from=encode("api_key", source) if source else None,
    )


def _created(row: Row, text: str) -> ApiKeyCreated:
    return ApiKeyCreated(**key_view(row).model_dump(), secret=text)


def _check(caller: Caller, role: Role, scopes: Iterable[str]) -> None:
    if not caller.may_give(role, scopes):
        raise Denied("a key cannot make one that may do more than itself", code="KEY_TOO_POWERFUL")


@router.post("", status_code=201, operation_id="createApiKey", response_model=ApiKeyCreated)
async def post_key(
    body: ApiKeyCreate, response: Response, services: Use, caller: CanWrite
) -> ApiKeyCreated:
    """Make a key. Its `secret` is shown in this answer and never again. A key that expires makes
    keys that expire no later.
    """
    _check(caller, body.role, body.scopes)
    new = keys.NewKey(body.name, body.role, tuple(dict.fromkeys(body.scopes)), body.expires_at)
    row, text = await keys.create_key(
        services.db, caller.tenant_id, services.keyring.pepper, new, caller.actor, caller.key_id
    )
    response.headers["Cache-Control"] = "no-store"
    return _created(row, text)


@router.get("", operation_id="listApiKeys", response_model=Page[ApiKeyView])
async def get_keys(
    services: Use, caller: CanRead, limit: Limit = 50, cursor: IdCursor = None
) -> Page[ApiKeyView]:
    """List keys, newest first, dead ones included."""
    rows = await keys.list_keys(
        services.db, caller.tenant_id, before=id_of(cursor), limit=limit + 1
    )
    data, next_cursor = page(rows, limit, key_view, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.delete("/{key_id}", status_code=204, operation_id="revokeApiKey")
async def delete_key(key_id: KeyId, services: Use, caller: CanWrite) -> None:
    """Revoke a key at once; safe to repeat. Other API processes know within five seconds."""
    row = await keys.revoke_key(services.db, caller.tenant_id, key_id, caller.actor)
    services.keyring.forget(row["public_id"])


@router.post(
    "/{key_id}/rotate",
    status_code=201,
    operation_id="rotateApiKey",
    response_model=ApiKeyCreated,
)
async def post_rotate(
    key_id: KeyId,
    response: Response,
    services: Use,
    caller: CanWrite,
    body: ApiKeyRotate | None = None,
) -> ApiKeyCreated:
    """Make a successor of a key with the same rights; both live during the overlap. It lives as
    long as the old one was to, but not longer than the key that makes it.
    """
    overlap_s = (body or ApiKeyRotate()).overlap_s
    old = await keys.read_key(services.db, caller.tenant_id, key_id)
    _check(caller, old["role"], old["scopes"])
    row, text = await keys.rotate_key(
        services.db,
        caller.tenant_id,
        services.keyring.pepper,
        key_id,
        overlap_s,
        caller.actor,
        caller.key_id,
    )
    services.keyring.forget(old["public_id"])
    response.headers["Cache-Control"] = "no-store"
    return _created(row, text)
