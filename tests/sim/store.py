"""Postgres in memory: each method does what the SQL file of the same name does, line by line.

Every method is called inside one transaction that happens in an instant: transactions are
serialised. A CAS under READ COMMITTED waits for the row's lock and reads it anew, which comes to
the same. `tests/store/test_sim_store.py` plays the same commands against the real Postgres.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from harness_common.core.run import DECIDED
from harness_common.store import json_codec
from harness_common.store.writes import Applied, Write, finish, prepare
from tests.sim.admission import Admission
from tests.sim.fleet import Fleet
from tests.sim.ledger import PROPOSED, Ledger
from tests.sim.tables import Row, as_json
from tests.sim.world import Violation

TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})


class Store(Ledger, Fleet, Admission):
    """Claims, commits and reads of runs."""

    # claim.sql

    def claim(
        self, run_id: UUID, version: int, claim_id: UUID, have: int, worker: UUID, hold_s: float
    ) -> Row | None:
        row = self.runs.get(run_id)
        if (
            row is None
            or row["version"] != version
            or row["status"] != "running"
            or row["claim_id"] is not None
        ):
            return None
        if row["deaths"] >= 2 and self.mutate != "suspect":
            alone = self.workers.get(worker)
            if alone is None or alone["concurrency"] != 1:
                return None
        before = dict(row)
        now, slot = self.world.time(), self.slots[row["tenant_id"]]
        rate = slot["steps_tat"], slot["places_tat"]
        row["fence"] += 1
        if self.mutate == "token":
            row["fence"] = self.minted(run_id)
        row["claim_id"], row["claimed_by"], row["claimed_at"] = claim_id, worker, now
        row["attempt"] += 1
        row["wake_at"] = now + timedelta(seconds=hold_s)
        wait_s, put_off = self._place(slot)
        self.audit.claimed(row, self.world.caller)

        def undo() -> None:
            self.runs[run_id] = before
            slot["steps_tat"], slot["places_tat"] = rate

        self._later(undo)
        out = dict(row)
        del out["stop_reason"], out["error"], out["output"]
        out["now"], out["crowded"] = now, slot["crowded"]
        out["wait_s"], out["put_off"] = wait_s, put_off
        out["rated"] = slot["steps_per_s"] is not None
        out["new_messages"] = self.messages[run_id][have : row["messages"]]
        out["calls"] = (
            [as_json(c) for c in self.calls.get((run_id, row["step"] + 1), ())]
            if row["next_kind"] == "tools"
            else None
        )
        return out

    def _place(self, slot: Row) -> tuple[float, bool]:
        """Charge a step that may start soon to its tenant's rate, or say when to come again (the
        CTEs `rated` and `tenant_rate`, for a batch of one).
        """
        if slot["steps_per_s"] is None:
            return 0.0, False
        now, each_s = self.world.time(), 1 / slot["steps_per_s"]
        lead_s = max(0.0, ((slot["steps_tat"] or now) - now).total_seconds())
        places_s = max(0.0, ((slot["places_tat"] or now) - now).total_seconds())
        put_off = lead_s > 0.25
        used_s = lead_s + (0 if put_off else each_s)
        slot["steps_tat"] = now + timedelta(seconds=used_s)
        next_s = max(places_s, used_s) + (each_s if put_off else 0)
        slot["places_tat"] = now + timedelta(seconds=min(60.0, next_s))
        return (min(60.0, max(places_s, lead_s)) if put_off else lead_s), put_off

    # commit.sql

    def commit(self, bodies: Sequence[Row]) -> list[Row]:
        return [row for t in bodies if (row := self._commit(t)) is not None]

    def _sees(self, row: Row, t: Row) -> bool:
        """The WHERE of the run's UPDATE."""
        owner: bool = row["fence"] == t["seen_fence"] and row["claim_id"] == t["seen_claim_id"]
        if self.mutate in {"claim_id", "token"}:
            claimed = row["claim_id"] is not None
            owner = row["fence"] == t["seen_fence"] and claimed == (t["seen_claim_id"] is not None)
        elif self.mutate == "fence":
            owner = True
        if self.mutate == "cas":
            return owner
        return bool(
            owner
            and row["version"] == t["seen_version"]
            and (row["last_input_n"] == t["seen_input_n"] or self.mutate == "inputs")
            and row["cancel_requested"] == t["seen_cancel"]
        )

    def _commit(self, t: Row) -> Row | None:  # noqa: C901 - one statement, line by line
        run_id: UUID = t["run_id"]
        row = self.runs.get(run_id)
        if row is None or not self._sees(row, t):
            return None
        self.audit.committing(row, t, self.world.caller)
        self._write(run_id)
        now, was, new_claim = self.world.time(), row["status"], t["new_claim"]
        status = str(t["status"])
        row["held_for"] = self._held_for(row, t, status)
        stays = {"wake_at", "rings"} if t["untouched"] else set[str]()
        for name in _COPIED:
            if name not in stays:
                row[name] = t[name]
        row["status"], row["messages"] = status, t["message_count"]
        row["fence"] += new_claim
        if new_claim and self.mutate == "token":
            row["fence"] = self.minted(run_id)
        kept = t["next_claim_id"] is not None
        row["claimed_by"] = t["worker"] if new_claim else row["claimed_by"] if kept else None
        row["claimed_at"] = now if new_claim else row["claimed_at"] if kept else None
        row["claim_id"] = t["next_claim_id"]
        if t["committed_by"] is not None:
            row["committed_by"] = t["committed_by"]
        if t["rings"] > 0 and not kept and not t["untouched"]:
            row["rung_at"] = now
        row["last_input_n"] += t["input_delta"]
        if t["input_delta"] and self.mutate in {"pause", "steer", "decided"}:
            self._forget_input(row)
        first_seq = row["next_seq"]
        row["next_seq"] += t["event_count"]
        if status == "queued" and was != "queued":
            row["queued_at"] = now
        row["finished_at"] = now if t["terminal"] else None
        if self.mutate == "wait" and row["not_before"] is not None:
            row["wake_at"] = row["not_before"] = now
        if t["terminal"] and row["parent_run_id"] is not None:
            parent = self.runs[row["parent_run_id"]]
            if parent["status"] == "waiting_children":
                parent["wake_at"] = now
        self._children(row, t, first_seq)
        if t["slot_delta"] and self.mutate != "slots":
            self._slot(self.slots[row["tenant_id"]], t)
        self.audit.committed(row, t, self.world.caller)
        return {
            "run_id": run_id,
            "first_seq": first_seq,
            "fence": row["fence"],
            "last_input_n": row["last_input_n"],
            "now": now,
        }

    def _held_for(self, row: Row, t: Row, status: str) -> str | None:
        if status != "queued":
            return None
        if row["status"] == "queued":
            held: str | None = row["held_for"]
            return held
        before = next(self.line(row["prev_run_id"]), None)
        if not t["started"] and before and not (before["finished_at"] and before["started"]):
            return "session"
        return "key" if row["concurrency_key"] is not None else None

    def _forget_input(self, row: Row) -> None:
        """The mutations "pause", "steer" and "decided": what was said over a step under way is not
        kept.
        """
        if self.mutate == "pause":
            row["pause_requested"] = False
        else:
            forgotten = "steer" if self.mutate == "steer" else DECIDED
            row["memo"] = {k: v for k, v in row["memo"].items() if k != forgotten}

    def _slot(self, slot: Row, t: Row) -> None:
        """The slot, and what its turn has used."""
        delta, began = t["slot_delta"], t["seen_turn_at"]
        if delta < 0 and began is not None and self.mutate != "turns":
            slot["used_s"] += max(0.0, (self.world.time() - began).total_seconds())
        at = t["turn_at"] if delta > 0 else began
        slot["running"] += delta
        if delta > 0:
            slot["last_admitted_at"] = self.world.time()
        slot["turn_sum"] += at.timestamp() * delta if at is not None else 0.0
        if slot["running"] == 0:
            slot["turn_sum"] = 0.0

    def _children(self, row: Row, t: Row, first_seq: int) -> None:
        """The INSERTs and the ledger's UPDATEs."""
        run_id = row["id"]
        if t["checkpoint"] is not None:
            steps = self.checkpoints[run_id]
            if t["step"] in steps:
                raise Violation("INV2", f"checkpoint {t['step']} of run {run_id} exists already")
            steps[t["step"]] = {
                "step": t["step"],
                "version": t["version"],
                "delta": t["checkpoint"]["delta"],
                "snapshot": t["snapshot"],
            }
        for n, event in enumerate(t["events"]):
            self.add_event(run_id, first_seq + n, event["type"], event["step"])
        for message in t["messages"]:
            if message["n"] != len(self.messages[run_id]) + 1:
                raise Violation("INV2", f"message {message['n']} of run {run_id} exists or is late")
            self.messages[run_id].append(message["body"])
        if t["terminal"] and t["next_kind"] == "tools" and self.mutate != "open_call":
            self._close_open(t)
        for p in t["proposed"]:
            rows = self.calls.setdefault((run_id, p["step"]), [])
            if any(c["idx"] == p["idx"] for c in rows):
                raise Violation("INV2", f"call {p['step']}.{p['idx']} was proposed twice")
            status = "cancelled" if t["terminal"] else "proposed"
            rows.append(
                _CALL | p | {"status": status, "arguments": json_codec.loads(p["arguments"])}
            )
        for o in t["outcomes"]:
            self._outcome(self._call(run_id, o["step"], o["idx"]), o, ended=t["terminal"])
        self._commit_approvals(run_id, t)

    def _outcome(self, call: Row, o: Row, *, ended: bool) -> None:
        waits = call["status"] == "running" and (
            call["resume_at"] is not None or call["attempt_id"] is None
        )
        if call["status"] not in PROPOSED and not waits:
            return
        status = str(o["status"])
        if ended and status in {"running", "awaiting_approval"}:
            began = status == "running" and call["effect"] == "write"
            status = "unknown" if began else "cancelled"
        for name in _OUTCOME:
            call[name] = o[name]
        call["status"] = status
        call["effect"] = call["effect"] or o["effect"]
        call["tool_version"] = call["tool_version"] or o["tool_version"]

    def _close_open(self, t: Row) -> None:
        """A run that ends leaves no call open (`open_call`)."""
        told = {(o["step"], o["idx"]) for o in t["outcomes"]}
        step = t["step"] + 1
        for call in self.calls.get((t["run_id"], step), ()):
            if (step, call["idx"]) in told:
                continue
            if call["status"] == "running" and call["effect"] == "write":
                call["status"], call["evidence"] = "unknown", "the run ended"
            elif call["status"] == "running" or call["status"] in PROPOSED:
                call["status"] = "cancelled"

    def apply(self, writes: Sequence[Write]) -> list[Applied | None]:
        """As `store.apply.apply`."""
        prepared = [prepare(write) for write in writes]
        rows = {row["run_id"]: row for row in self.commit([p.body for p in prepared])}
        return [
            finish(p, rows[p.write.run.id]) if p.write.run.id in rows else None for p in prepared
        ]

    # Reads and locks of one run: read_run.sql, lock_run.sql, input_insert.sql

    def read_run(self, run_id: UUID) -> Row | None:
        row = self.runs.get(run_id)
        return None if row is None else row | {"now": self.world.time()}

    def input_insert(self, run_id: UUID, n: int, kind: str) -> None:
        rows = self.inputs[run_id]
        if n != len(rows) + 1:
            raise Violation("INV5", f"input {n} of run {run_id} after {len(rows)}")
        rows.append({"n": n, "kind": kind})


_COPIED: Final = (
    "version", "step", "next_kind", "turn", "failures", "limited", "deaths", "memo", "started",
    "cancel_requested", "not_before", "stop_reason", "error", "output", "input_tokens",
    "output_tokens", "cost_usd", "attempt", "wake_at", "rings", "pause_requested", "waiting",
    "turn_at",
)  # fmt: skip
_OUTCOME: Final = (
    "result", "error_type", "trust", "artifacts", "duration_ms", "cost_usd", "attempt", "resume_at",
    "input_tokens", "output_tokens",
)  # fmt: skip
_CALL: Final[Row] = {
    "attempt": 0, "attempt_id": None, "result": None, "error_type": None, "trust": None,
    "artifacts": [], "duration_ms": None, "cost_usd": 0.0, "effect": None, "tool_version": None,
    "resume_at": None, "evidence": None, "input_tokens": 0, "output_tokens": 0,
}  # fmt: skip
