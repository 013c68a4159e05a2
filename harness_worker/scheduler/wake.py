"""Timers: a delayed run whose time has come is queued, and admitted in the same commit when its
tenant has room.
"""

from __future__ import annotations

from uuid import UUID

from harness_common.core.inputs import Admit, TimerDue
from harness_common.store.apply import Applied, apply
from harness_common.store.db import run_sql
from harness_worker.scheduler.looper import Look, Shared


class WakeLoop:
    """Wakes delayed runs."""

    name = "wake"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def run_once(self, look: Look) -> int:
        """Wake what is due, tenant by tenant."""
        if look.due_in_s is None or look.due_in_s > 0:
            return 0
        batch = self._shared.settings.scheduler.batch
        woken = 0
        for row in await self._shared.db.fetch("due", {"batch": batch}):
            woken += await self._wake_tenant(row["tenant_id"], batch, look.queued)
        self._shared.count("runs_woken", woken)
        return woken

    async def _wake_tenant(self, tenant_id: UUID, batch: int, others_wait: bool) -> int:
        shared = self._shared
        applied: list[Applied | None] = []
        async with shared.db.transaction() as conn:
            await shared.check_term(conn)
            slot = (await run_sql(conn, "slots_lock", {"tenant_id": tenant_id}, 10.0))[0]
            room = 0 if others_wait else slot["room"]
            rows = await run_sql(
                conn,
                "wake_pick",
                {"tenant_id": tenant_id, "limit": batch, "now": slot["now"]},
                shared.db.timeout_s,
            )
            writes = shared.writes(
                rows,
                # A run with a concurrency key is held until its key has room.
                lambda row, before: (
                    [TimerDue(), Admit()]
                    if before < room and row["concurrency_key"] is None
                    else [TimerDue()]
                ),
                slot["now"],
            )
            applied = await apply(conn, writes, timeout_s=shared.db.timeout_s)
        done = [one for one in applied if one is not None]
        for one in done:
            shared.ring(one)
        return len(done)
