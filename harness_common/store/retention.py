"""How long a tenant keeps things: its own ages over those of the settings. Used by the API; the
scheduler reads the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from harness_common.core.ids import encode
from harness_common.settings import AGES, RetentionSettings
from harness_common.store.audit import Actor, Entry, record
from harness_common.store.connection import run_sql
from harness_common.store.db import Database


@dataclass(frozen=True, slots=True)
class Ages:
    """Days by name (`settings.AGES`): what the tenant has set, and what holds."""

    own: Mapping[str, int | None]
    holds: Mapping[str, int | None]
    """What goes with the run goes no later than the run."""
    changed_at: datetime | None = None
    changed_by: str | None = None


async def read_ages(db: Database, tenant_id: UUID, config: RetentionSettings) -> Ages:
    """Read a tenant's ages."""
    async with db.tenant_transaction(tenant_id) as conn:
        params = {"tenant_id": tenant_id}
        rows = await run_sql(conn, "retention_read", params, db.timeout_s)
    row = rows[0] if rows else {}
    own = {name: row.get(name) for name in AGES}
    holds = {n: config.days()[n] if v is None else v for n, v in own.items()}
    last = holds["runs_days"]
    if last is not None:
        holds = {n: last if v is None else min(v, last) for n, v in holds.items()}
    return Ages(own, holds, row.get("changed_at"), row.get("changed_by"))


async def set_ages(
    db: Database, tenant_id: UUID, changes: Mapping[str, int | None], actor: Actor
) -> None:
    """Change a tenant's ages that are named; None goes back to the settings."""
    key = {"tenant_id": tenant_id}
    async with db.tenant_transaction(tenant_id) as conn:
        await run_sql(conn, "slots_hold", key, db.timeout_s)
        rows = await run_sql(conn, "retention_read", key, db.timeout_s)
        before = {name: rows[0][name] if rows else None for name in AGES}
        params = {**key, **before, **changes, "by": actor.name}
        await run_sql(conn, "retention_put", params, db.timeout_s)
        detail = {n: {"from": before[n], "to": v} for n, v in changes.items()}
        entry = Entry("tenant.set_retention", encode("tenant", tenant_id), detail)
        record(conn, tenant_id, actor, entry)
