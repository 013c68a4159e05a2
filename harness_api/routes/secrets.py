"""Secrets of the tenant, which can be set and never read; and the encryption of its bodies."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import Limit, page
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.secrets import (
    DataKeyView,
    EncryptionPut,
    EncryptionView,
    RewrapInput,
    RewrapView,
    SecretPut,
    SecretView,
    WrappingView,
)
from harness_common.store import encryption, secrets
from harness_common.store.connection import Row
from harness_common.store.encryption import Wrapping
from harness_common.store.secret_values import NAME

router = new_router("/v1", "secrets")

_PATTERN: Final = f"^{NAME}$"
SecretName = Annotated[
    str, Path(pattern=_PATTERN, description="Letters, digits, `_`, `-` and `.`; at most 64.")
]
NameCursor = Annotated[
    str | None, Query(pattern=_PATTERN, description="`next_cursor` of the page before.")
]


def secret_view(row: Row) -> SecretView:
    """Show a secret, but for its value."""
    return SecretView(**row)


@router.put("/secrets/{name}", operation_id="setSecret", response_model=SecretView)
async def put_secret(
    name: SecretName,
    body: SecretPut,
    services: Use,
    caller: Annotated[Caller, requires("secrets:write")],
) -> SecretView:
    """Set a secret or replace its value. Tools that use it have the new value within 15 seconds."""
    row = await secrets.put_secret(services.db, caller.tenant_id, name, body.value, caller.actor)
    return secret_view(row)


@router.get("/secrets", operation_id="listSecrets", response_model=Page[SecretView])
async def get_secrets(
    services: Use,
    caller: Annotated[Caller, requires("secrets:read")],
    limit: Limit = 50,
    cursor: NameCursor = None,
) -> Page[SecretView]:
    """List secrets by name, without their values."""
    rows = await secrets.list_secrets(services.db, caller.tenant_id, after=cursor, limit=limit + 1)
    data, next_cursor = page(rows, limit, secret_view, "name")
    return Page(data=data, next_cursor=next_cursor)


@router.delete("/secrets/{name}", status_code=204, operation_id="deleteSecret")
async def delete_secret(
    name: SecretName, services: Use, caller: Annotated[Caller, requires("secrets:write")]
) -> None:
    """Delete a secret for good. No tool gets it from 15 seconds later on."""
    await secrets.delete_secret(services.db, caller.tenant_id, name, caller.actor)


async def _encryption(services: Services, caller: Caller) -> EncryptionView:
    row = await encryption.read_encryption(services.db, caller.tenant_id)
    since, key = row["encrypted_since"], None
    if row["version"] is not None:
        key = DataKeyView(
            version=row["version"],
            kek=row["kek_id"],
            created_at=row["created_at"],
            rewrapped_at=row["rewrapped_at"],
        )
    return EncryptionView(on=since is not None, since=since, data_key=key)


@router.get("/tenant/encryption", operation_id="getEncryption", response_model=EncryptionView)
async def get_encryption(
    services: Use, caller: Annotated[Caller, requires("tenant:read")]
) -> EncryptionView:
    """Read whether bodies of the tenant are encrypted."""
    return await _encryption(services, caller)


@router.put("/tenant/encryption", operation_id="setEncryption", response_model=EncryptionView)
async def put_encryption(
    body: EncryptionPut, services: Use, caller: Annotated[Caller, requires("tenant:write")]
) -> EncryptionView:
    """Turn the encryption of bodies on or off for what is written from five seconds later on."""
    await encryption.set_encryption(
        services.db, services.data_keys, caller.tenant_id,
        on=body.on, new_key=body.new_key, actor=caller.actor,
    )  # fmt: skip
    return await _encryption(services, caller)


def _wrapping(found: Wrapping) -> dict[str, object]:
    return {
        "current": found.current,
        "known": list(found.known),
        "data_keys": found.data_keys,
        "left": found.left,
        "out_of_reach": found.out_of_reach,
    }


@router.get("/platform/keys", operation_id="getDataKeys", response_model=WrappingView)
async def get_keys(
    services: Use, caller: Annotated[Caller, requires("platform:read")]
) -> WrappingView:
    """Count the data keys of all tenants by the key-encryption key that wraps them."""
    found = await encryption.read_wrapping(services.db, services.data_keys, caller.tenant_id)
    return WrappingView.model_validate(_wrapping(found))


@router.post("/platform/keys/rewrap", operation_id="rewrapDataKeys", response_model=RewrapView)
async def post_rewrap(
    services: Use,
    caller: Annotated[Caller, requires("platform:write")],
    body: RewrapInput | None = None,
) -> RewrapView:
    """Wrap some data keys by the current key-encryption key; repeat until `left` is 0. Safe to
    repeat and to break off.
    """
    done = await encryption.rewrap(
        services.db, services.data_keys, caller.tenant_id,
        limit=(body or RewrapInput()).limit, actor=caller.actor,
    )  # fmt: skip
    found = await encryption.read_wrapping(services.db, services.data_keys, caller.tenant_id)
    return RewrapView.model_validate(_wrapping(found) | {"rewrapped": done})
