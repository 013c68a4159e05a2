"""Reading throttles for people. Used by the API; the workers have their own statements."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from sqlalchemy import func, select, text

from harness_common.core.run import Status
from harness_common.core.throttle import ENDS_AFTER_S
from harness_common.store.connection import Row
from harness_common.store.core_sql import run_core
from harness_common.store.db import Database
from harness_common.store.schema import runs, throttles

_ENDED: Final = text("clock_timestamp() - make_interval(secs => :s)").bindparams(s=ENDS_AFTER_S)


async def list_throttles(db: Database, tenant_id: UUID) -> list[Row]:
    """Return the live throttles, the longest first, with how many runs of the tenant wait for each.

    A throttle is of everybody who shares the provider, so it is no tenant's data; runs are.
    """
    waiting_for = runs.c.memo["permit"]["scope"].astext
    waits = (
        select(waiting_for.label("scope"), func.count().label("waiting"))
        .where(
            runs.c.wake_at.is_not(None),  # a small index: delayed and running ones
            runs.c.tenant_id == tenant_id,
            runs.c.status == Status.DELAYED.value,
        )
        .group_by(waiting_for)
        .subquery()
    )
    query = (
        select(throttles, func.coalesce(waits.c.waiting, 0).label("waiting"))
        .outerjoin(waits, waits.c.scope == throttles.c.scope)
        .where(func.greatest(throttles.c.until, throttles.c.next_at) > _ENDED)
        .order_by(throttles.c.since)
    )
    async with db.tenant_transaction(tenant_id) as conn:
        return await run_core(conn, query, db.timeout_s)
