"""Worker processes, the leader, and what the scheduler reads: heartbeat.sql, worker_died.sql,
lead.sql, look.sql, orphans.sql, ring.sql and their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from harness_common.core.errors import Conflict
from tests.sim.tables import Row, Tables
from tests.sim.world import EPOCH


class Fleet(Tables):
    """Statements over `workers`, `leader` and `tenant_slots`, and the scheduler's over `runs`."""

    def worker_register(self, worker: UUID, name: str) -> Row:
        now = self.world.time()
        if worker in self.workers:
            self.workers[worker]["seen_at"] = now
        else:
            self.workers[worker] = {
                "incarnation": worker,
                "name": name,
                "queues": ("steps.default",),
                "seen_at": now,
                "died_at": None,
                "died_why": None,
                "queue_age_s": 0.0,
            }
        self.flush()
        return {"now": now}

    def heartbeat(
        self, worker: UUID, claims: Sequence[UUID], queue_age_s: float, orphan_after_s: float
    ) -> list[Row]:
        now = self.world.time()
        out: list[Row] = []
        row = self.workers.get(worker)
        if row is not None:
            before = dict(row)
            condemned = row["died_at"] is not None
            row.update(seen_at=now, queue_age_s=queue_age_s, died_at=None, died_why=None)
            out.append(
                {"run_id": None, "cancel_requested": False, "condemned": condemned, "now": now}
            )

            def undo() -> None:
                self.workers[worker] = before
                self.audit.forgotten(worker, before["seen_at"])

            self._later(undo)
            self.audit.beat(worker)
        late = now - timedelta(seconds=orphan_after_s)
        out += [
            {
                "run_id": r["id"],
                "claim_id": r["claim_id"],
                "cancel_requested": r["cancel_requested"],
                "condemned": False,
                "now": now,
            }
            for r in self.runs.values()
            if r["claimed_by"] == worker
            and r["claim_id"] is not None
            and (r["cancel_requested"] or (r["claim_id"] not in claims and r["claimed_at"] < late))
        ]
        return out

    def worker_died(
        self, worker: UUID, why: str, looked_at: datetime | None, silent_s: float, term: int | None
    ) -> int:
        """Silence counts only with `looked_at`, the parameter `only_if_silent` of the SQL."""
        row, now = self.workers.get(worker), self.world.time()
        if row is None or row["died_at"] is not None:
            return 0
        if term is not None and not self._leads(term):
            return 0
        if looked_at is not None and not (
            row["seen_at"] < now - timedelta(seconds=silent_s)
            and now < looked_at + timedelta(seconds=silent_s / 2)
        ):
            return 0
        self.flush()
        row.update(died_at=now, died_why=why)
        self.audit.condemned(worker, why)
        self._ring_queues(row["queues"], before=now)
        return 1

    def worker_leave(self, worker: UUID) -> None:
        if any(r["claimed_by"] == worker and r["claim_id"] is not None for r in self.runs.values()):
            return
        row = self.workers.pop(worker, None)
        self.flush()
        if row is not None:
            self._ring_queues(row["queues"])

    def _ring_queues(self, queues: Sequence[str], before: Any = None) -> None:
        for r in self.runs.values():
            if (
                r["status"] == "running"
                and r["claim_id"] is None
                and r["queue"] in queues
                and (before is None or (r["rung_at"] is not None and r["rung_at"] < before))
            ):
                r["wake_at"] = self.world.time()

    def workers_alive(self) -> list[Row]:
        now = self.world.time()
        return [
            {"incarnation": w["incarnation"], "silent_s": (now - w["seen_at"]).total_seconds()}
            for w in self.workers.values()
            if w["died_at"] is None
        ]

    # The leader: lead.sql, lead_check.sql

    def lead(self, holder: UUID, ttl_s: float) -> int | None:
        now = self.world.time()
        if self.leader is None:
            self.leader = {"term": 1, "holder": holder}
        elif self.leader["holder"] == holder or self.leader["until"] < now:
            over = self.leader["holder"] != holder or self.leader["until"] < now
            self.leader["term"] += over
            self.leader["holder"] = holder
        else:
            return None
        self.leader["until"] = now + timedelta(seconds=ttl_s)
        self.flush()
        term: int = self.leader["term"]
        return term

    def _leads(self, term: int) -> bool:
        leads = self.leader is not None and self.leader["term"] == term
        if self.mutate == "term" and not leads:
            self.audit.deposed_wrote(term)
        return leads

    def lead_check(self, term: int) -> None:
        """Raise `Conflict` (TERM_OVER) when another scheduler leads, as `Shared.check_term`."""
        if not self._leads(term) and self.mutate != "term":
            raise Conflict("another scheduler leads now", code="TERM_OVER", term=term)

    # The scheduler's reads and small writes

    def look(self, lease_s: float) -> Row:
        now, runs = self.world.time(), self.runs.values()
        wakes = [r["wake_at"] for r in runs if r["wake_at"] is not None]
        silent = now - timedelta(seconds=lease_s)
        living = {w for w, r in self.workers.items() if r["died_at"] is None}
        return {
            "due_in_s": (min(wakes) - now).total_seconds() if wakes else None,
            "queued": any(r["status"] == "queued" for r in runs),
            "stale": any(self.workers[w]["seen_at"] < silent for w in living),
            "orphaned": any(
                r["claim_id"] is not None and r["claimed_by"] not in living for r in runs
            ),
            "ungranted": any(
                s["granted"] == 0 and s["max_running"] > 0 for s in self.slots.values()
            ),
            "queue_age_s": max((self.workers[w]["queue_age_s"] for w in living), default=0.0),
            "now": now,
        }

    def orphans(self, batch: int) -> list[Row]:
        out = []
        for r in self.runs.values():
            w = self.workers.get(r["claimed_by"])
            if r["claim_id"] is not None and (w is None or w["died_at"] is not None):
                out.append(
                    {
                        "run_id": r["id"],
                        "claim_id": r["claim_id"],
                        "claimed_by": r["claimed_by"],
                        "name": w and w["name"],
                        "died_why": w and w["died_why"],
                    }
                )
        return out[:batch]

    def overdue(self, again_s: float, term: int) -> None:
        now = self.world.time()
        if not self._leads(term):
            return
        for r in self.runs.values():
            w = self.workers.get(r["claimed_by"])
            if (
                r["wake_at"] is not None
                and r["wake_at"] <= now
                and r["status"] == "running"
                and r["claim_id"] is not None
                and w is not None
                and w["died_at"] is None
            ):
                r["wake_at"] = now + timedelta(seconds=again_s)
                self.flush()

    def ring(self, term: int, batch: int, first_s: float, longest_s: float) -> list[Row]:
        now = self.world.time()
        if not self._leads(term):
            return []
        due = [
            r
            for r in self.runs.values()
            if r["wake_at"] is not None
            and r["wake_at"] <= now
            and r["status"] == "running"
            and r["claim_id"] is None
        ]
        due.sort(key=lambda r: r["wake_at"])
        for r in due[:batch]:
            after_s = min(longest_s, first_s * 2 ** min(r["rings"], 16))
            r["rings"] += 1
            r["rung_at"], r["wake_at"] = now, now + timedelta(seconds=after_s)
            self.flush()
        return due[:batch]

    def ring_all(self, term: int) -> int:
        due = [
            r
            for r in self.runs.values()
            if r["status"] == "running" and r["claim_id"] is None and r["wake_at"] is not None
        ]
        if not self._leads(term):
            return 0
        for r in due:
            r["wake_at"], r["rings"] = self.world.time(), 0
            self.flush()
        return len(due)

    def due(self) -> list[UUID]:
        now = self.world.time()
        return list(
            dict.fromkeys(
                r["tenant_id"]
                for r in self.runs.values()
                if r["wake_at"] is not None and r["wake_at"] <= now and r["status"] == "delayed"
            )
        )

    def wake_pick(self, tenant_id: UUID, limit: int, now: Any) -> list[Row]:
        due = [
            r
            for r in self.runs.values()
            if r["tenant_id"] == tenant_id
            and r["status"] == "delayed"
            and r["wake_at"] is not None
            and r["wake_at"] <= now
        ]
        return sorted(due, key=lambda r: r["wake_at"])[:limit]

    def _waits(self, r: Row) -> bool:
        return r["status"] == "queued" and r["held_for"] is None

    def admit_pick(self, tenant_id: UUID, limit: int) -> list[Row]:
        queued = [r for r in self.runs.values() if r["tenant_id"] == tenant_id and self._waits(r)]
        return sorted(queued, key=lambda r: (r["priority"], r["queued_at"]))[:limit]

    def admit_tenants(self) -> list[UUID]:
        found = [
            s
            for t, s in self.slots.items()
            if s["running"] < min(s["max_running"], s["granted"])
            and any(r["tenant_id"] == t and self._waits(r) for r in self.runs.values())
        ]
        found.sort(key=lambda s: s["last_admitted_at"] or EPOCH)
        return [s["tenant_id"] for s in found]

    def slots_lock(self, tenant_id: UUID) -> Row:
        slot, now = self.slots[tenant_id], self.world.time()
        slot["last_admitted_at"] = now
        room = min(slot["max_running"], slot["granted"]) - slot["running"]
        return {"room": 100 if self.mutate == "limits" else room, "now": now}

    def slots_read(self) -> list[Row]:
        now = self.world.time()
        return [
            {
                **s,
                "waiting": sum(r["tenant_id"] == t and self._waits(r) for r in self.runs.values()),
                "recent": s["last_admitted_at"] is not None
                and s["last_admitted_at"] > now - timedelta(minutes=1),
            }
            for t, s in self.slots.items()
        ]

    def slots_grant(self, tenant_id: UUID, granted: int, term: int) -> int | None:
        if not self._leads(term):
            return None
        slot = self.slots[tenant_id]
        slot["granted"] = max(granted, slot["running"])
        self.flush()
        return int(slot["granted"])
