"""How long things are kept, and erasing what a user or a tenant has left."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response

from harness_api.auth import Caller, requires
from harness_api.deps import Services, Use
from harness_api.paging import IdCursor, Limit, id_of, page
from harness_api.routes.ids import ErasureId
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.retention import (
    AgesPatch,
    AgesSet,
    ErasurePreview,
    ErasureView,
    RetentionView,
    TenantErase,
    UserErase,
)
from harness_common.core.ids import decode, encode
from harness_common.store import erasures
from harness_common.store.connection import Row
from harness_common.store.retention import read_ages, set_ages

router = new_router("/v1", "retention")

CanErase = Annotated[Caller, requires("data:erase")]
CanEraseTenants = Annotated[Caller, requires("platform:write")]


async def _ages(services: Services, caller: Caller) -> RetentionView:
    found = await read_ages(services.db, caller.tenant_id, services.config.retention)
    return RetentionView(
        own=AgesSet(**found.own),
        holds=AgesSet(**found.holds),
        changed_at=found.changed_at,
        changed_by=found.changed_by,
    )


@router.get("/tenant/retention", operation_id="getRetention", response_model=RetentionView)
async def get_retention(
    services: Use, caller: Annotated[Caller, requires("tenant:read")]
) -> RetentionView:
    """Read how long things are kept after the end of their run."""
    return await _ages(services, caller)


@router.patch("/tenant/retention", operation_id="setRetention", response_model=RetentionView)
async def patch_retention(
    body: AgesPatch, services: Use, caller: Annotated[Caller, requires("tenant:write")]
) -> RetentionView:
    """Change the ages that are named. What is past them is deleted within the next hour."""
    if changes := body.changes():
        await set_ages(services.db, caller.tenant_id, changes, caller.actor)
    return await _ages(services, caller)


def _erasure(row: Row) -> ErasureView:
    return ErasureView(
        id=encode("erasure", row["id"]),
        subject=row["subject"],
        tenant_id=encode("tenant", row["target_tenant"]),
        user_id=row["user_id"],
        phase=row["phase"],
        counts=row["counts"],
        asked_by=row["asked_by"],
        created_at=row["created_at"],
        finished_at=row["finished_at"],
    )


def _shown(response: Response, row: Row, *, is_new: bool) -> ErasureView:
    view = _erasure(row)
    response.headers["Location"] = f"/v1/erasures/{view.id}"
    if not is_new:
        response.status_code = 200
    return view


@router.post("/erasures/preview", operation_id="previewUserErasure", response_model=ErasurePreview)
async def post_preview(body: UserErase, services: Use, caller: CanErase) -> ErasurePreview:
    """Count what there is of a user."""
    row = await erasures.preview_erasure(services.db, caller.tenant_id, body.user_id)
    return ErasurePreview(**row)


@router.post("/erasures", status_code=202, operation_id="eraseUser", response_model=ErasureView)
async def post_erasure(
    body: UserErase, response: Response, services: Use, caller: CanErase
) -> ErasureView:
    """Erase all that there is of a user: sessions, runs with all that they have, facts, files. Runs
    under way are cancelled first. Safe to repeat.
    """
    row, is_new = await erasures.ask_erasure(
        services.db, caller.tenant_id, caller.tenant_id, body.user_id, actor=caller.actor
    )
    return _shown(response, row, is_new=is_new)


@router.get("/erasures", operation_id="listErasures", response_model=Page[ErasureView])
async def get_erasures(
    services: Use, caller: CanErase, limit: Limit = 50, cursor: IdCursor = None
) -> Page[ErasureView]:
    """List erasures, newest first."""
    rows = await erasures.list_erasures(
        services.db, caller.tenant_id, before=id_of(cursor), limit=limit + 1
    )
    data, next_cursor = page(rows, limit, _erasure, "id")
    return Page(data=data, next_cursor=next_cursor)


@router.get("/erasures/{erasure_id}", operation_id="getErasure", response_model=ErasureView)
async def get_erasure(erasure_id: ErasureId, services: Use, caller: CanErase) -> ErasureView:
    """Read how far an erasure is."""
    return _erasure(await erasures.read_erasure(services.db, caller.tenant_id, erasure_id))


@router.post(
    "/platform/erasures/preview", operation_id="previewTenantErasure", response_model=ErasurePreview
)
async def post_tenant_preview(
    body: TenantErase, services: Use, caller: CanEraseTenants
) -> ErasurePreview:
    """Count what there is of a tenant."""
    del caller
    tenant_id = decode("tenant", body.tenant_id)
    await erasures.require_erasable(services.db, tenant_id)
    return ErasurePreview(**await erasures.preview_erasure(services.db, tenant_id, None))


@router.post(
    "/platform/erasures", status_code=202, operation_id="eraseTenant", response_model=ErasureView
)
async def post_tenant_erasure(
    body: TenantErase, response: Response, services: Use, caller: CanEraseTenants
) -> ErasureView:
    """Erase a tenant: its keys are revoked, its runs cancelled, its data keys destroyed, and all
    that it has is deleted. Safe to repeat.
    """
    tenant_id = decode("tenant", body.tenant_id)
    await erasures.require_erasable(services.db, tenant_id)
    row, is_new = await erasures.ask_erasure(
        services.db, caller.tenant_id, tenant_id, None, actor=caller.actor
    )
    return _shown(response, row, is_new=is_new)
