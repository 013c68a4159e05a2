"""What is stored, for whoever runs the platform."""

from __future__ import annotations

from typing import Annotated

from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.routing import new_router
from harness_api.schemas.retention import PartitionSize, StorageView, TableSize, TenantShare
from harness_common.core.ids import encode
from harness_common.store.storage import read_storage

router = new_router("/v1", "storage")


@router.get("/storage", operation_id="getStorage", response_model=StorageView)
async def get_storage(
    services: Use, caller: Annotated[Caller, requires("platform:read")]
) -> StorageView:
    """Read what is stored by table, week and tenant, and what retention deletes next."""
    found = await read_storage(services.db, caller.tenant_id, services.config.retention)
    return StorageView(
        database_bytes=found.database_bytes,
        tables=[TableSize(**row) for row in found.tables],
        partitions=[
            PartitionSize(
                table=row["parent"], week=row["week"], rows=row["rows"], bytes=row["bytes"]
            )
            for row in found.partitions
        ],
        tenants=[
            TenantShare(**row | {"tenant_id": encode("tenant", row["tenant_id"])})
            for row in found.tenants
        ],
        is_sample=found.is_sample,
        garbage_blobs=found.garbage_blobs,
    )
