"""Postgres in memory: each method does what the SQL file of the same name does, line by line.

Every method is called inside one transaction that happens in an instant (transactions are
serialised; a CAS under READ COMMITTED re-reads the locked row, which comes to the same). Rows are
dicts with the columns' names. Claims and heartbeats commit asynchronously: `crash` may forget them,
newest first, unless a synchronous commit came later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from harness_common.core.errors import Conflict
from harness_common.core.run import RunState
from harness_common.store import json_codec
from harness_common.store.apply import Applied, Write, finish, prepare
from tests.sim.auditor import Auditor
from tests.sim.world import EPOCH, US, Violation, World

Row = dict[str, Any]
WAL_WRITER_S: Final = 0.6
"""An asynchronous commit is on disk after at most three rounds of the WAL writer (200 ms each)."""
PROPOSED: Final = ("proposed", "validating", "awaiting_approval")


class Store:
    """The tables, and the statements over them."""

    def __init__(self, world: World, audit: Auditor, mutate: str = "") -> None:
        self.world, self.audit, self.mutate = world, audit, mutate
        self.runs: dict[UUID, Row] = {}
        self.events: dict[UUID, list[Row]] = {}
        self.checkpoints: dict[UUID, dict[int, Row]] = {}
        self.messages: dict[UUID, list[str]] = {}
        self.calls: dict[tuple[UUID, int], list[Row]] = {}
        self.inputs: dict[UUID, list[Row]] = {}
        self.slots: dict[UUID, Row] = {}
        self.workers: dict[UUID, Row] = {}
        self.leader: Row | None = None
        self.undo: list[tuple[int, Callable[[], None]]] = []
        self.minted: Callable[[], int] = lambda: 0
        """The counter in Redis from which the mutation "token" takes fences."""

    # Durability

    def _later(self, undo: Callable[[], None]) -> None:
        """Note an asynchronous commit (`SET LOCAL synchronous_commit = off`)."""
        now = self.world.now
        while self.undo and self.undo[0][0] < now - WAL_WRITER_S * US:
            del self.undo[0]
        self.undo.append((now, undo))

    def flush(self) -> None:
        """Note a synchronous commit: it puts all that came before it on disk too."""
        if self.mutate != "async_commit":
            self.undo.clear()

    def crash(self) -> int:
        """Forget asynchronous commits that were not on disk; how many is the dice's business."""
        fresh = [u for t, u in self.undo if t >= self.world.now - WAL_WRITER_S * US]
        lost = self.world.rng.randint(0, len(fresh))
        for undo in reversed(fresh[len(fresh) - lost :]):
            undo()
        self.undo.clear()
        return lost

    def _snapshot(self, run_id: UUID) -> Callable[[], None]:
        """Return how to forget what is written to a run from now on."""
        row, slots = dict(self.runs[run_id]), dict(self.slots[self.runs[run_id]["tenant_id"]])
        n_events, n_messages = len(self.events[run_id]), len(self.messages[run_id])
        steps = dict(self.checkpoints[run_id])
        calls = {k: [dict(c) for c in v] for k, v in self.calls.items() if k[0] == run_id}

        def undo() -> None:
            self.runs[run_id] = row
            self.slots[row["tenant_id"]].update(running=slots["running"])
            del self.events[run_id][n_events:], self.messages[run_id][n_messages:]
            self.checkpoints[run_id] = steps
            for key in [k for k in self.calls if k[0] == run_id]:
                del self.calls[key]
            self.calls.update(calls)

        return undo

    def _write(self, run_id: UUID) -> None:
        if self.mutate == "async_commit":
            self._later(self._snapshot(run_id))
        self.flush()

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
        before = dict(row)
        now = self.world.time()
        row["fence"] += 1
        if self.mutate == "token":
            row["fence"] = self.minted()
        row["claim_id"], row["claimed_by"], row["claimed_at"] = claim_id, worker, now
        row["attempt"] += 1
        row["wake_at"] = now + timedelta(seconds=hold_s)
        self.audit.claimed(row, self.world.caller)

        def undo() -> None:
            self.runs[run_id] = before

        self._later(undo)
        out = dict(row)
        del out["stop_reason"], out["error"], out["output"]
        out["now"] = now
        out["new_messages"] = self.messages[run_id][have : row["messages"]]
        out["calls"] = (
            [_as_json(c) for c in self.calls.get((run_id, row["step"] + 1), ())]
            if row["next_kind"] == "tools"
            else None
        )
        return out

    # commit.sql

    def commit(self, bodies: Sequence[Row]) -> list[Row]:
        return [row for t in bodies if (row := self._commit(t)) is not None]

    def _sees(self, row: Row, t: Row) -> bool:
        """The WHERE of the run's UPDATE."""
        owner = row["fence"] == t["seen_fence"] and row["claim_id"] == t["seen_claim_id"]
        if self.mutate in {"claim_id", "token"}:
            owner = row["fence"] == t["seen_fence"]
        elif self.mutate == "fence":
            owner = True
        if self.mutate == "cas":
            return owner
        return (
            owner
            and row["version"] == t["seen_version"]
            and row["last_input_n"] == t["seen_input_n"]
            and row["cancel_requested"] == t["seen_cancel"]
        )

    def _commit(self, t: Row) -> Row | None:
        run_id: UUID = t["run_id"]
        row = self.runs.get(run_id)
        if row is None or not self._sees(row, t):
            return None
        self.audit.committing(row, t, self.world.caller)
        self._write(run_id)
        now, was, new_claim = self.world.time(), row["status"], t["new_claim"]
        for name in _COPIED:
            row[name] = t[name]
        row["status"], row["messages"] = str(t["status"]), t["message_count"]
        row["fence"] += new_claim
        if new_claim and self.mutate == "token":
            row["fence"] = self.minted()
        kept = t["next_claim_id"] is not None
        row["claimed_by"] = t["worker"] if new_claim else row["claimed_by"] if kept else None
        row["claimed_at"] = now if new_claim else row["claimed_at"] if kept else None
        row["claim_id"] = t["next_claim_id"]
        if t["committed_by"] is not None:
            row["committed_by"] = t["committed_by"]
        if t["rings"] > 0 and not kept:
            row["rung_at"] = now
        row["last_input_n"] += t["input_delta"]
        first_seq = row["next_seq"]
        row["next_seq"] += t["event_count"]
        if row["status"] == "queued" and was != "queued":
            row["queued_at"] = now
        if self.mutate == "wait" and row["not_before"] is not None:
            row["wake_at"] = row["not_before"] = now
        self._children(row, t, first_seq)
        if self.mutate != "slots":
            self.slots[row["tenant_id"]]["running"] += t["slot_delta"]
        self.audit.committed(row, t, self.world.caller)
        return {
            "run_id": run_id,
            "first_seq": first_seq,
            "fence": row["fence"],
            "last_input_n": row["last_input_n"],
            "now": now,
        }

    def _children(self, row: Row, t: Row, first_seq: int) -> None:
        """The INSERTs and the ledger's UPDATE."""
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
        for p in t["proposed"]:
            rows = self.calls.setdefault((run_id, p["step"]), [])
            if any(c["idx"] == p["idx"] for c in rows):
                raise Violation("INV2", f"call {p['step']}.{p['idx']} was proposed twice")
            rows.append(
                _CALL | p | {"status": "proposed", "arguments": json_codec.loads(p["arguments"])}
            )
        for o in t["outcomes"]:
            call = self._call(run_id, o["step"], o["idx"])
            if call["status"] in PROPOSED or (
                call["status"] == "running" and call["resume_at"] is not None
            ):
                for name in _OUTCOME:
                    call[name] = o[name]
                call["status"] = str(o["status"])
                call["effect"] = call["effect"] or o["effect"]
                call["tool_version"] = call["tool_version"] or o["tool_version"]

    def add_event(self, run_id: UUID, seq: int, type_: str, step: int | None) -> None:
        log = self.events[run_id]
        if seq != len(log) + 1:
            raise Violation("INV5", f"event {seq} of run {run_id} after {len(log)}")
        log.append({"seq": seq, "type": type_, "step": step})

    def apply(self, writes: Sequence[Write]) -> list[Applied | None]:
        """As `store.apply.apply`."""
        prepared = [prepare(write) for write in writes]
        rows = {row["run_id"]: row for row in self.commit([p.body for p in prepared])}
        return [
            finish(p, rows[p.write.run.id]) if p.write.run.id in rows else None for p in prepared
        ]

    # The ledger: call_intent.sql, call_result.sql, call_give_up.sql, call_read.sql

    def _call(self, run_id: UUID, step: int, idx: int) -> Row:
        return next(c for c in self.calls[run_id, step] if c["idx"] == idx)

    def call_intent(self, p: Row) -> list[Row]:
        run_id, row = p["run_id"], self.runs[p["run_id"]]
        call = self._call(run_id, p["step"], p["idx"])
        if call["attempt_id"] != p["prior_attempt_id"] or call["status"] not in p["from_status"]:
            return []
        owner = row["fence"] == p["fence"] and row["claim_id"] == p["claim_id"]
        if self.mutate in {"claim_id", "token"}:
            owner = row["fence"] == p["fence"]
        elif self.mutate == "fence":
            owner = True
        asked = row["cancel_requested"] and self.mutate != "intent_cancel"
        if row["version"] != p["version"] or not owner or asked:
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
        if call["attempt_id"] != p["attempt_id"] or call["status"] not in ("running", "unknown"):
            return [{"won": False}]
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
        return _as_json(self._call(run_id, step, idx))

    # Reads and locks of one run: read_run.sql, lock_run.sql, input_insert.sql

    def read_run(self, run_id: UUID) -> Row | None:
        row = self.runs.get(run_id)
        return None if row is None else row | {"now": self.world.time()}

    def input_insert(self, run_id: UUID, n: int, kind: str) -> None:
        rows = self.inputs[run_id]
        if n != len(rows) + 1:
            raise Violation("INV5", f"input {n} of run {run_id} after {len(rows)}")
        rows.append({"n": n, "kind": kind})

    # Workers: worker_register.sql, heartbeat.sql, worker_died.sql, worker_leave.sql, …

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
        now, out = self.world.time(), []
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

            self._later(undo)
            self.audit.beat(worker)
        late = now - timedelta(seconds=orphan_after_s)
        for r in self.runs.values():
            if (
                r["claimed_by"] == worker
                and r["claim_id"] is not None
                and (
                    r["cancel_requested"]
                    or (r["claim_id"] not in claims and r["claimed_at"] < late)
                )
            ):
                out.append(
                    {
                        "run_id": r["id"],
                        "claim_id": r["claim_id"],
                        "cancel_requested": r["cancel_requested"],
                        "condemned": False,
                        "now": now,
                    }
                )
        return out

    def worker_died(
        self, worker: UUID, why: str, only_if_silent: bool, silent_s: float, term: int | None
    ) -> int:
        row, now = self.workers.get(worker), self.world.time()
        if row is None or row["died_at"] is not None:
            return 0
        if term is not None and not self._leads(term):
            return 0
        if only_if_silent and not row["seen_at"] < now - timedelta(seconds=silent_s):
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


def first_row(tenant_id: UUID, run_id: UUID, state: RunState, more: Row) -> Row:
    """Build a row of `runs` as start_insert.sql leaves it."""
    row: Row = dict.fromkeys(
        ("claim_id", "claimed_by", "claimed_at", "committed_by", "held_for", "prev_run_id",
         "not_before", "stop_reason", "error", "output", "rung_at", "wake_at"),
    )  # fmt: skip
    row |= {
        "tenant_id": tenant_id, "id": run_id, "session_id": run_id, "agent_id": tenant_id,
        "agent_name": "a", "agent_version": 1, "queue": "steps.default", "priority": 6,
        "trace_id": "", "attempt": 0, "fence": 0, "last_input_n": 0, "rings": 0,
        "status": str(state.status), "version": state.version, "step": state.step,
        "next_kind": state.next_kind, "turn": state.turn, "failures": 0, "limited": 0, "deaths": 0,
        "messages": state.messages, "memo": dict(state.memo), "started": state.started,
        "cancel_requested": False, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0,
        "limits": state.limits.to_json(), "next_seq": 1, "queued_at": None,
    }  # fmt: skip
    return row | more


_COPIED: Final = (
    "version", "step", "next_kind", "turn", "failures", "limited", "deaths", "memo", "started",
    "cancel_requested", "not_before", "stop_reason", "error", "output", "input_tokens",
    "output_tokens", "cost_usd", "attempt", "wake_at", "rings",
)  # fmt: skip
_OUTCOME: Final = (
    "result", "error_type", "trust", "artifacts", "duration_ms", "cost_usd", "attempt", "resume_at",
)  # fmt: skip
_CALL: Final[Row] = {
    "attempt": 0, "attempt_id": None, "result": None, "error_type": None, "trust": None,
    "artifacts": [], "duration_ms": None, "cost_usd": 0.0, "effect": None, "tool_version": None,
    "resume_at": None, "evidence": None,
}  # fmt: skip


def _as_json(call: Row) -> Row:
    """Write a ledger row as `to_jsonb` does, as far as `PendingCall` reads it."""
    return call | {
        "attempt_id": call["attempt_id"] and str(call["attempt_id"]),
        "resume_at": call["resume_at"] and call["resume_at"].isoformat(),
    }
