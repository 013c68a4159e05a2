"""All tenants and their limits, for whoever runs the platform. Used by the API's platform routes.

The API's login sees one tenant's rows. What is here goes through two functions of the database,
which answer only while the caller's own tenant is an operator's.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.store import json_codec
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Row, run_sql
from harness_common.store.db import Database


async def list_tenants(
    db: Database, operator_id: UUID, *, before: UUID | None, limit: int
) -> list[Row]:
    """Return tenants as `tenants.read_tenant` does, newest first, of those made before `before`;
    their queued runs are counted up to 1,000.
    """
    params = {"before": before, "limit": limit, "only": None}
    async with db.tenant_transaction(operator_id) as conn:
        return await run_sql(conn, "platform_tenant_list", params, db.timeout_s)


async def read_tenant_of(db: Database, operator_id: UUID, tenant_id: UUID) -> Row:
    """Read one tenant; raises `NotFound`."""
    params = {"before": None, "limit": 1, "only": tenant_id}
    async with db.tenant_transaction(operator_id) as conn:
        rows = await run_sql(conn, "platform_tenant_list", params, db.timeout_s)
    if not rows:
        raise _no_tenant(tenant_id)
    return rows[0]


async def set_limits_of(
    db: Database,
    operator_id: UUID,
    tenant_id: UUID,
    changes: Mapping[str, float | None],
    actor: Actor,
) -> None:
    """Change some of another tenant's limits; None clears one. Both tenants' audit trails say so,
    the changed one's without the operator's key. Raises `NotFound`.
    """
    shown = encode("tenant", tenant_id)
    params = {
        "tenant_id": tenant_id,
        "changes": json_codec.dumps_text(dict(changes)),
        "target": shown,
    }
    async with db.tenant_transaction(operator_id) as conn:
        rows = await run_sql(conn, "platform_tenant_limit", params, db.timeout_s)
        if not rows:
            raise _no_tenant(tenant_id)
        entry = Entry("tenant.set_limits", shown, rows[0]["changed"])
        record(conn, operator_id, actor, entry)


def _no_tenant(tenant_id: UUID) -> NotFound:
    shown = encode("tenant", tenant_id)
    return NotFound(f"no tenant {shown}", field="tenant_id", value=shown)
