"""Approvals in the simulated Postgres: approval_seek.sql, approval_decide.sql, what commit.sql and
call_intent.sql do to them; and the people who decide (`commands.approvals`).
"""

from __future__ import annotations

from typing import Final, Literal
from uuid import UUID

from tests.sim.tables import Row, Tables
from tests.sim.world import Violation

OPEN: Final = ("pending", "approved")
Verdict = Literal["approved", "denied"]


class Approvals(Tables):
    """Statements over `approvals`."""

    def approval_seek(self, run_id: UUID, step: int, idx: int) -> Row | None:
        """Return the last approval of a call."""
        rows = [r for r in self.approvals.get(run_id, ()) if (r["step"], r["idx"]) == (step, idx)]
        return dict(rows[-1]) if rows else None

    def approval_decide(self, run_id: UUID, approval_id: UUID, verdict: Verdict) -> bool:
        """Decide what is pending and in time; the run's row is locked."""
        for row in self.approvals.get(run_id, ()):
            late = row["expires_at"] <= self.world.time()
            if row["id"] == approval_id and row["status"] == "pending" and not late:
                self._write(run_id)
                row["status"] = verdict
                if verdict == "approved":
                    self.audit.approved[run_id, row["step"], row["idx"]] += 1
                return True
        return False

    def _use(self, p: Row) -> bool:
        """The condition and the UPDATE of call_intent.sql; True when nothing is in the way."""
        approval_id = p.get("approval_id")
        if approval_id is None:
            return True
        for row in self.approvals.get(p["run_id"], ()):
            if row["id"] == approval_id and row["status"] == "approved":
                row["status"] = "used"
                return True
        return False

    def _commit_approvals(self, run_id: UUID, t: Row) -> None:
        """What commit.sql asks, expires and closes."""
        rows = self.approvals.setdefault(run_id, [])
        for a in () if t["terminal"] else t["asked"]:
            for row in rows:
                same = (row["step"], row["idx"]) == (a["step"], a["idx"])
                if same and row["status"] in OPEN:
                    row["status"] = "void"
            kept = {name: a[name] for name in ("id", "step", "idx", "expires_at")}
            rows.append(kept | {"status": "pending"})
        if t["expired"]:
            late = {
                (o["step"], o["idx"])
                for o in t["outcomes"]
                if o["error_type"] == "APPROVAL_EXPIRED"
            }
            self._expire([r for r in rows if (r["step"], r["idx"]) in late])
        elif t["terminal"] or (t["checkpoint"] or {}).get("kind") == "tools":
            for row in rows:
                if row["status"] in OPEN:
                    row["status"] = "cancelled" if t["terminal"] else "void"

    def _expire(self, rows: list[Row]) -> None:
        for row in rows:
            if row["status"] == "pending":
                if row["expires_at"] > self.world.time():
                    raise Violation("INV19", "an approval expired before its time")
                row["status"] = "expired"
                self.audit.happened["approvals expired"] += 1
            elif row["status"] == "approved":
                raise Violation("INV19", "a call whose approval was given is told that it expired")
