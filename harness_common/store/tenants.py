"""Limits as data, of a tenant and of the whole platform, and the worker processes. Used by the API.

The scheduler and the claims read the same rows, so that a change counts at once, without a restart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert as upsert

from harness_common.core.errors import NotFound
from harness_common.core.ids import encode
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import Connection, Row, run_sql
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import platform, tenant_slots, workers

_RATES: Final = {"starts_per_s": ("starts_tat",), "steps_per_s": ("steps_tat", "places_tat")}
"""A rate that changes begins anew: what was paid ahead at the old pace is forgotten."""
_GLOBAL: Final = "global"


async def read_tenant(db: Database, tenant_id: UUID) -> Row:
    """Return name, limits, slot-seconds, running and queued runs of a tenant."""
    async with db.tenant_transaction(tenant_id) as conn:
        rows = await run_sql(conn, "tenant_view", {"tenant_id": tenant_id}, db.timeout_s)
    if not rows:
        raise NotFound("no such tenant")
    return rows[0]


async def set_tenant_limits(
    db: Database, tenant_id: UUID, changes: Mapping[str, float | None], actor: Actor
) -> None:
    """Change some of a tenant's limits; None clears one. What runs already goes on."""
    mine = tenant_slots.c.tenant_id == tenant_id
    async with db.tenant_transaction(tenant_id) as conn:
        query = select(tenant_slots).where(mine).with_for_update()
        rows = await run_core(conn, query, db.timeout_s)
        if not rows:
            raise NotFound("no such tenant")
        change = update(tenant_slots).where(mine).values(**_values(changes))
        await run_core(conn, change, db.timeout_s)
        _record(conn, tenant_id, actor, "tenant", rows[0], changes)


async def read_platform(db: Database) -> Row:
    """Return the limits over all tenants, with `running` and `queued` runs."""
    async with db.connection() as conn:
        return (await run_sql(conn, "platform_view", {}, db.timeout_s))[0]


async def set_platform_limits(
    db: Database, tenant_id: UUID, changes: Mapping[str, float | None], actor: Actor
) -> None:
    """Change some limits over all tenants; None clears one. The audit row is the operator's."""
    async with db.tenant_transaction(tenant_id) as conn:
        make = upsert(platform).values(name=_GLOBAL).on_conflict_do_nothing()
        await run_core(conn, make, db.timeout_s)
        one = platform.c.name == _GLOBAL
        query = select(platform).where(one).with_for_update()
        rows = await run_core(conn, query, db.timeout_s)
        change = update(platform).where(one).values(**_values(changes))
        await run_core(conn, change, db.timeout_s)
        _record(conn, tenant_id, actor, "platform", rows[0], changes)


def _values(changes: Mapping[str, float | None]) -> dict[str, Any]:
    return {**changes, **{paid: None for name in changes for paid in _RATES.get(name, ())}}


def _record(
    conn: Connection,
    tenant_id: UUID,
    actor: Actor,
    what: str,
    before: Row,
    changes: Mapping[str, float | None],
) -> None:
    """Leave a row in the audit trail that says what each limit was and is."""
    target = encode("tenant", tenant_id) if what == "tenant" else what
    detail = {name: {"from": before[name], "to": value} for name, value in changes.items()}
    record(conn, tenant_id, actor, Entry(f"{what}.set_limits", target, detail))


async def list_workers(db: Database) -> list[Row]:
    """Return the known worker processes, newest first. They serve every tenant, so this is no
    tenant's data.
    """
    async with db.connection() as conn:
        query = select(workers).order_by(workers.c.started_at.desc())
        return await run_core(conn, query, db.timeout_s)
