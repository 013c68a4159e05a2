"""Timers: a run that waits for a time which has come moves on, and is admitted in the same commit
when its tenant has room.

Delays end, questions expire, wall clocks run out (also while no worker comes), and parents look
whether their children are done.
"""

from __future__ import annotations

import time
from datetime import datetime
from uuid import UUID

import structlog

from harness_common.core.ids import encode
from harness_common.core.inputs import Admit, ChildrenDone, Input, TimerDue
from harness_common.core.run import Status
from harness_common.store.apply import apply
from harness_common.store.connection import Row, RowsHeld, run_sql
from harness_common.store.writes import Applied
from harness_worker.scheduler.looper import HELD_S, Look, PassedBy, Shared

log = structlog.get_logger()


class WakeLoop:
    """Wakes runs that wait."""

    name = "wake"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._passed_by = PassedBy()

    async def run_once(self, look: Look) -> int:
        """Wake what is due, tenant by tenant, who waits longest first; never for longer than the
        leader may go without renewing its term. What is left is done at the next tick.
        """
        if look.due_in_s is None or look.due_in_s > 0:
            return 0
        shared = self._shared
        batch = shared.settings.scheduler.batch
        until = time.monotonic() + shared.settings.scheduler.leader_renew_s
        woken = 0
        for row in await shared.db.fetch("due", {"batch": batch, "skipped": shared.skipped()}):
            woken += await self._try_tenant(row["tenant_id"], batch, look.queued)
            if time.monotonic() > until:
                break
        shared.count("runs_woken", woken)
        return woken

    async def _try_tenant(self, tenant_id: UUID, batch: int, others_wait: bool) -> int:
        """Wake what is due of a tenant; the next one goes on when somebody holds its slots."""
        if self._passed_by.has(tenant_id):
            return 0
        try:
            return await self._wake_tenant(tenant_id, batch, others_wait)
        except RowsHeld:
            self._passed_by.note(tenant_id)
            log.warning("wake.held_up", tenant_id=encode("tenant", tenant_id))
            return 0

    async def _wake_tenant(self, tenant_id: UUID, batch: int, others_wait: bool) -> int:
        shared = self._shared
        applied: list[Applied | None] = []
        async with shared.db.transaction(HELD_S) as conn:
            slot = (await shared.led(conn, "slots_lock", {"tenant_id": tenant_id}))[0]
            room = 0 if others_wait else slot["room"]
            rows = await run_sql(
                conn,
                "wake_pick",
                {
                    "tenant_id": tenant_id,
                    "limit": batch,
                    "now": slot["now"],
                    "skipped": shared.skipped(),
                },
                shared.db.timeout_s,
            )
            writes = shared.writes(
                rows,
                lambda row, before: inputs_when_due(row, slot["now"], before < room),
                slot["now"],
            )
            applied = await apply(conn, writes, timeout_s=shared.db.timeout_s)
        done = [one for one in applied if one is not None]
        for one in done:
            shared.ring(one)
        return len(done)


def inputs_when_due(row: Row, now: datetime, has_room: bool) -> list[Input]:
    """Return what follows for a run whose time has come; a run with a concurrency key is admitted
    by the loop that counts its key.
    """
    deadline = row["limits"].get("deadline")
    if deadline is not None and datetime.fromisoformat(deadline) <= now:
        return [TimerDue()]
    wakes = row["status"] == Status.DELAYED
    first: Input = TimerDue()
    if row["status"] == Status.WAITING_CHILDREN and row["children_done"]:
        first, wakes = ChildrenDone(), True
    admit = wakes and has_room and not row["pause_requested"] and row["concurrency_key"] is None
    return [first, Admit()] if admit else [first]
