"""Admission: which queued run may start, within the tenant's limit and its block of the global one,
round-robin between tenants.

The fast path is `commands.start_run`, which admits at once when there is room and nobody waits.
This loop serves those who wait, and hands out the blocks of the global limit: only the leader
changes `granted`, and a tenant never runs more than it was granted, so the sum of the blocks bounds
the sum of running runs (INV13) without a global lock.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from harness_common.core.run import Admit, advance
from harness_common.store.apply import Applied, Write, apply
from harness_common.store.db import run_sql
from harness_common.store.rows import run_from_row
from harness_worker.scheduler.looper import Look, Shared

SHARE: Final = 8
"""Runs that one tenant is admitted before the next tenant has its turn."""


class AdmitLoop:
    """Admits queued runs."""

    name = "admit"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def run_once(self, look: Look) -> int:
        """Hand out blocks, then admit in passes until the batch is full or nobody has room."""
        if not (look.queued or look.ungranted):
            return 0
        await self._grant()
        done, limit = 0, self._shared.settings.scheduler.batch
        while done < limit:
            rows = await self._shared.db.fetch("admit_tenants", {"batch": 100})
            admitted = 0
            for row in rows:
                admitted += await self._admit_tenant(row["tenant_id"])
            if not admitted:
                break
            done += admitted
        self._shared.count("runs_admitted", done)
        return done

    async def _admit_tenant(self, tenant_id: UUID) -> int:
        shared = self._shared
        applied: list[Applied | None] = []
        async with shared.db.transaction() as conn:
            await shared.check_term(conn)
            slot = (await run_sql(conn, "slots_lock", {"tenant_id": tenant_id}, 10.0))[0]
            room = min(SHARE, slot["room"])
            if room <= 0:
                return 0
            rows = await run_sql(
                conn, "admit_pick", {"tenant_id": tenant_id, "limit": room}, shared.db.timeout_s
            )
            writes: list[Write] = []
            for row in rows:
                run = run_from_row(row)
                writes.append(Write(run, advance(run.state, [Admit()], slot["now"]), slot["now"]))
            applied = await apply(conn, writes, timeout_s=shared.db.timeout_s)
        done = [one for one in applied if one is not None]
        for one in done:
            shared.ring(one)
        return len(done)

    async def _grant(self) -> None:
        """Move blocks of the global limit to where they are wanted: take back first, then give."""
        shared = self._shared
        rows = await shared.db.fetch("slots_read", {})
        wanted = blocks(rows, shared.settings.scheduler.max_running)
        current = {r["tenant_id"]: r["granted"] for r in rows}
        changes = [(t, n) for t, n in wanted.items() if n != current[t]]
        for tenant_id, granted in sorted(changes, key=lambda c: c[1] > current[c[0]]):
            if granted > current[tenant_id]:
                spare = shared.settings.scheduler.max_running - sum(current.values())
                granted = min(granted, current[tenant_id] + max(0, spare))  # noqa: PLW2901
            answer = await shared.db.fetch_one(
                "slots_grant", {"tenant_id": tenant_id, "granted": granted, "term": shared.term}
            )
            if answer is not None:
                current[tenant_id] = answer["granted"]


def blocks(rows: list[dict[str, Any]], limit: int) -> dict[Any, int]:
    """Divide the global limit: everybody keeps what runs, the rest is shared by those who want
    more.

    Those who want more are the tenants that wait or have lately started something; all tenants
    while there is plenty.
    """
    free = limit - sum(r["running"] for r in rows)
    seekers = [r for r in rows if r["waiting"] or r["recent"]]
    if len(rows) * SHARE <= free:
        seekers = rows
    out = {r["tenant_id"]: min(r["running"], r["max_running"]) for r in rows}
    hungry = list(seekers)
    while free > 0 and hungry:
        each = max(1, free // len(hungry))
        still = []
        for row in hungry:
            room = row["max_running"] - out[row["tenant_id"]]
            given = min(each, room, free)
            if given <= 0:
                continue
            out[row["tenant_id"]] += given
            free -= given
            if given < room:
                still.append(row)
        if len(still) == len(hungry) and each == 1 and free == 0:
            break
        hungry = still
    return out
