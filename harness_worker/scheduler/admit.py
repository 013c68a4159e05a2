"""Admission: which queued run may start, within the tenant's limit and its block of the global one,
round-robin between tenants.

The fast path is `commands.start_run`, which admits at once when there is room and nobody waits.
This loop serves those who wait, and hands out the blocks of the global limit: only the leader
changes `granted`, and a tenant never runs more than it was granted, so the sum of the blocks bounds
the sum of running runs (INV13) without a global lock.
"""

from __future__ import annotations

from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any, Final
from uuid import UUID

from harness_common.core.inputs import Admit
from harness_common.store.apply import Applied, apply
from harness_common.store.db import run_sql
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
            writes = shared.writes(rows, lambda *_: [Admit()], slot["now"])
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
    """Divide the global limit: everybody keeps what runs; then those who wait get what they wait
    for; then, for a next run, those who lately started one, or all tenants while there is plenty.

    Each round fills up those who hold least. Among equals the longest unserved comes first, so that
    nobody starves.
    """
    out = {r["tenant_id"]: min(r["running"], r["max_running"]) for r in rows}
    free = limit - sum(r["running"] for r in rows)
    waiting = {r["tenant_id"]: min(r["max_running"], r["running"] + r["waiting"]) for r in rows}
    free = _fill(out, rows, waiting, free)
    plenty = len(rows) * SHARE <= free
    likely = {
        r["tenant_id"]: r["max_running"] for r in rows if plenty or r["recent"] or r["waiting"]
    }
    _fill(out, rows, likely, free)
    return out


def _fill(out: dict[Any, int], rows: list[dict[str, Any]], up_to: dict[Any, int], free: int) -> int:
    """Give single slots to whoever holds least, up to each one's bound; return what is left."""
    level = [
        (out[r["tenant_id"]], _unserved_since(r), n, r["tenant_id"])
        for n, r in enumerate(rows)
        if out[r["tenant_id"]] < up_to.get(r["tenant_id"], 0)
    ]
    heapify(level)
    while free > 0 and level:
        held, since, n, tenant_id = heappop(level)
        out[tenant_id] = held + 1
        free -= 1
        if held + 1 < up_to[tenant_id]:
            heappush(level, (held + 1, since, n, tenant_id))
    return free


def _unserved_since(row: dict[str, Any]) -> float:
    """Order tenants by when they were last admitted; never comes first."""
    last: datetime | None = row["last_admitted_at"]
    return 0.0 if last is None else last.timestamp()
