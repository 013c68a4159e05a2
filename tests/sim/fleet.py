"""Worker processes, the leader, and what the scheduler reads: heartbeat.sql, worker_died.sql,
lead.sql, look.sql, orphans.sql, ring.sql, forsaken.sql, suspects.sql and their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from harness_common.core.errors import TermOver
from tests.sim.tables import QUEUE, Row, Tables, bell_queue


class Fleet(Tables):
    """Statements over `workers` and `leader`, and the scheduler's over `runs`."""

    def worker_register(
        self, worker: UUID, name: str, concurrency: int = 200, queues: Sequence[str] = (QUEUE,)
    ) -> Row:
        now = self.world.time()
        if worker in self.workers:
            self.workers[worker]["seen_at"] = now
        else:
            self.workers[worker] = {
                "incarnation": worker, "name": name, "queues": tuple(queues), "seen_at": now,
                "died_at": None, "died_why": None, "queue_age_s": 0.0, "stopping_at": None,
                "concurrency": concurrency,
            }  # fmt: skip
        self.flush()
        return {"now": now}

    def worker_stopping(self, worker: UUID) -> None:
        row = self.workers.get(worker)
        if row is not None and row["stopping_at"] is None:
            row["stopping_at"] = self.world.time()
            self.flush()

    def heartbeat(
        self, worker: UUID, claims: Sequence[UUID], queue_age_s: float, orphan_after_s: float
    ) -> list[Row]:
        now = self.world.time()
        out: list[Row] = []
        row = self.workers.get(worker)
        if row is not None:
            before = (row["seen_at"], row["queue_age_s"], row["died_at"], row["died_why"])
            condemned = row["died_at"] is not None
            row["seen_at"], row["queue_age_s"] = now, queue_age_s
            row["died_at"] = row["died_why"] = None
            out.append(
                {"run_id": None, "cancel_requested": False, "condemned": condemned, "now": now}
            )

            def undo() -> None:
                row["seen_at"], row["queue_age_s"], row["died_at"], row["died_why"] = before
                self.audit.forgotten(worker, before[0])

            self._later(undo)
            self.audit.beat(worker)
        late = now - timedelta(seconds=orphan_after_s)
        for r in self.runs.values():
            if (
                r["claim_id"] is not None
                and r["claimed_by"] == worker
                and (
                    r["cancel_requested"]
                    or (r["claim_id"] not in claims and r["claimed_at"] < late)
                )
            ):
                out.append(  # noqa: PERF401
                    {
                        "run_id": r["id"], "claim_id": r["claim_id"],
                        "cancel_requested": r["cancel_requested"], "condemned": False, "now": now,
                    }
                )  # fmt: skip
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
        row["died_at"], row["died_why"] = now, why
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
                and bell_queue(r) in queues
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

    def suspects(self, worker: UUID | None, soon_s: float) -> Row:
        soon = self.world.time() + timedelta(seconds=soon_s)
        waiting = [
            r
            for r in self.runs.values()
            if r["deaths"] >= 2
            and r["status"] == "running"
            and r["claim_id"] is None
            and r["wake_at"] < soon
        ]
        served = {
            q
            for w in self.workers.values()
            if w["died_at"] is None and w["stopping_at"] is None and w["concurrency"] == 1
            for q in w["queues"]
        }
        return {
            "waiting": len(waiting),
            "unserved": sum(bell_queue(r) not in served for r in waiting),
            "holds": any(
                r["claimed_by"] == worker and r["claim_id"] is not None for r in self.runs.values()
            ),
        }

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
        """Raise `TermOver` when another scheduler leads, as `Shared.check_term`."""
        if not self._leads(term) and self.mutate != "term":
            raise TermOver("another scheduler leads now", term=term)

    # The scheduler's reads and small writes

    def look(self, lease_s: float) -> Row:
        now = self.world.time()
        since = now - timedelta(seconds=lease_s)
        living, stale, capacity, age_s = set(), False, 0, 0.0
        for w in self.workers.values():
            if w["died_at"] is None:
                living.add(w["incarnation"])
                stale = stale or w["seen_at"] < since
                age_s = max(age_s, w["queue_age_s"])
                if w["stopping_at"] is None and w["seen_at"] > since:
                    capacity += w["concurrency"]
        out = self._look_at_runs(living)
        if out["forsaken"]:
            self.audit.forsaken(self.forsaken())
        due = out["due_in_s"]
        out["due_in_s"] = None if due is None else (due - now).total_seconds()
        return out | {
            "stale": stale,
            "ungranted": sum(
                s["granted"] == 0 and s["max_running"] > 0 for s in self.slots.values()
            ),
            "capacity": capacity,
            "granted": sum(s["granted"] for s in self.slots.values()),
            "all_running": None,
            "queue_age_s": age_s,
            "now": now,
        }

    def _look_at_runs(self, living: Set[UUID]) -> Row:
        due: datetime | None = None
        out: Row = dict.fromkeys(("queued", "keyed", "behind", "orphaned", "forsaken"), False)
        for r in self.runs.values():
            wake = r["wake_at"]
            if wake is not None and (due is None or wake < due):
                due = wake
            if r["status"] == "queued":
                out[_HELD[r["held_for"]]] = True
            if r["claim_id"] is not None and r["claimed_by"] not in living:
                out["orphaned"] = True
            if r["parent_run_id"] is not None and self._is_forsaken(r):
                out["forsaken"] = True
        out["due_in_s"] = due
        return out

    def _is_forsaken(self, child: Row) -> bool:
        if child["finished_at"] is not None or child["cancel_requested"]:
            return False
        parent = self.runs[child["parent_run_id"]]
        return bool(parent["cancel_requested"] or parent["finished_at"] is not None)

    def forsaken(self) -> list[UUID]:
        return [
            r["id"]
            for r in self.runs.values()
            if r["parent_run_id"] is not None and self._is_forsaken(r)
        ]

    def orphans(self, batch: int, skipped: Set[UUID] = frozenset()) -> list[Row]:
        out, now = [], self.world.time()
        for r in self.runs.values():
            if r["claim_id"] is None or r["id"] in skipped:
                continue
            w = self.workers.get(r["claimed_by"])
            if w is None or w["died_at"] is not None:
                more = {"worker_name": None, "died_why": None, "solo": None, "late": False}
                if w is not None:
                    more |= {"worker_name": w["name"], "died_why": w["died_why"]}
                    more["late"] = r["claimed_at"] > w["died_at"]
                    more["solo"] = self._was_alone(r, w)
                out.append(r | more | {"now": now})
        return out[:batch]

    def _was_alone(self, row: Row, worker: Row) -> bool:
        return (
            worker["concurrency"] == 1
            and worker["stopping_at"] is None
            and not any(
                o["claimed_by"] == row["claimed_by"]
                and o["claim_id"] is not None
                and o["claim_id"] != row["claim_id"]
                for o in self.runs.values()
            )
        )

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
                if r["wake_at"] is not None and r["wake_at"] <= now and _is_due(r, now)
            )
        )

    def wake_pick(self, tenant_id: UUID, limit: int, now: Any) -> list[Row]:
        due = [
            r
            for r in self.runs.values()
            if r["tenant_id"] == tenant_id
            and r["wake_at"] is not None
            and r["wake_at"] <= now
            and _is_due(r, now)
        ]
        due.sort(key=lambda r: r["wake_at"])
        return [r | {"children_done": self._children_done(r)} for r in due[:limit]]

    def _children_done(self, row: Row) -> bool:
        return self.mutate != "join" and not any(
            c["parent_run_id"] == row["id"]
            and c["parent_step"] == row["step"] + 1
            and c["finished_at"] is None
            for c in self.runs.values()
        )


def _is_due(row: Row, now: datetime) -> bool:
    """It waits for a time, or nobody works on it and its wall clock is over."""
    deadline = row["limits"]["deadline"]
    late = deadline is not None and datetime.fromisoformat(deadline) <= now
    return row["status"] != "running" or (late and row["claim_id"] is None)


_HELD = {None: "queued", "key": "keyed", "session": "behind"}
