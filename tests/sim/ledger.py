"""The ledger of tool calls: call_intent.sql, call_result.sql, call_give_up.sql, call_read.sql,
effect_resolve.sql.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from tests.sim.approvals import Approvals
from tests.sim.tables import Row, as_json

PROPOSED: Final = ("proposed", "validating", "awaiting_approval")


class Ledger(Approvals):
    """Statements over `tool_calls`."""

    def call_intent(self, p: Row) -> list[Row]:
        run_id, row = p["run_id"], self.runs[p["run_id"]]
        call = self._call(run_id, p["step"], p["idx"])
        if call["attempt_id"] != p["prior_attempt_id"] or call["status"] not in p["from_status"]:
            return []
        owner = row["fence"] == p["fence"] and row["claim_id"] == p["claim_id"]
        if self.mutate in {"claim_id", "token"}:
            owner = row["fence"] == p["fence"] and row["claim_id"] is not None
        elif self.mutate == "fence":
            owner = True
        asked = row["cancel_requested"] and self.mutate != "intent_cancel"
        if row["version"] != p["version"] or not owner or asked:
            return []
        if not self._use(p):
            return []
        self.audit.intended(row, p, self.world.caller)
        self._write(run_id)
        seq = row["next_seq"]
        if self.mutate != "seq":
            row["next_seq"] += 1
        call["status"], call["attempt_id"] = "running", p["attempt_id"]
        call["attempt"] += 1
        call["effect"], call["tool_version"] = p["effect"], p["tool_version"]
        call["resume_at"] = None
        self.add_event(run_id, seq, "tool.started", p["step"])
        return [{"attempt": call["attempt"]}]

    def call_result(self, p: Row) -> list[Row]:
        call = self._call(p["run_id"], p["step"], p["idx"])
        if call["attempt_id"] != p["attempt_id"]:
            return [{"won": False}]
        if call["status"] not in ("running", "unknown"):
            # Written already, and the reply was lost: it has won.
            written = (call["status"], call["result"])
            return [{"won": written == (p["status"], p["result"])}]
        self._write(p["run_id"])
        if call["status"] == "unknown":
            call["evidence"] = p["evidence"]
            return [{"won": False}]
        for name in ("status", "result", "error_type", "duration_ms", "cost_usd", "resume_at"):
            call[name] = p[name]
        call["trust"], call["artifacts"] = p["trust"], p["artifacts"]
        self.audit.moved(p["run_id"])
        return [{"won": True}]

    def call_give_up(self, p: Row) -> list[Row]:
        call = self._call(p["run_id"], p["step"], p["idx"])
        if (
            call["attempt_id"] != p["attempt_id"]
            or call["status"] != "running"
            or call["resume_at"] is not None
        ):
            return []
        self._write(p["run_id"])
        call["status"], call["evidence"] = p["status"], p["why"]
        return [{"marked": 1}]

    def call_read(self, run_id: UUID, step: int, idx: int) -> Row:
        return as_json(self._call(run_id, step, idx))

    def effect_resolve(self, run_id: UUID, step: int, idx: int, status: str, told: str) -> int:
        """Return how many unknown calls are left in the step; -1 when somebody was first."""
        call = self._call(run_id, step, idx)
        if call["status"] != "unknown":
            return -1
        self._write(run_id)
        again = status == "proposed"
        call["status"], call["result"] = status, None if again else told
        call["error_type"] = "NOT_DONE" if status == "failed" else None
        call["trust"], call["resume_at"] = "trusted", None
        if again:
            call["attempt_id"] = call["evidence"] = None
            self.audit.authorised[run_id, step, idx] += 1
        return sum(c["status"] == "unknown" for c in self.calls[run_id, step])
