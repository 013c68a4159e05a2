"""The tables of the simulated Postgres, and what a crash of it forgets.

Rows are dicts with the columns' names. Claims and heartbeats commit asynchronously: `crash` may
forget them, newest first, unless a synchronous commit came later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID

from harness_common.core.retry import RetryRule
from harness_common.core.run import RunState
from tests.sim.auditor import Auditor
from tests.sim.world import US, Violation, World

Row = dict[str, Any]
WAL_WRITER_S: Final = 0.6
"""An asynchronous commit is on disk after at most three rounds of the WAL writer (200 ms each)."""
QUEUE: Final = "steps.default"


class Tables:
    """The rows, and their durability."""

    def __init__(self, world: World, audit: Auditor, mutate: str = "") -> None:
        self.world, self.audit, self.mutate = world, audit, mutate
        self.runs: dict[UUID, Row] = {}
        self.events: dict[UUID, list[Row]] = {}
        self.checkpoints: dict[UUID, dict[int, Row]] = {}
        self.messages: dict[UUID, list[str]] = {}
        self.calls: dict[tuple[UUID, int], list[Row]] = {}
        self.approvals: dict[UUID, list[Row]] = {}
        self.inputs: dict[UUID, list[Row]] = {}
        self.slots: dict[UUID, Row] = {}
        self.workers: dict[UUID, Row] = {}
        self.leader: Row | None = None
        self.undo: deque[tuple[int, Callable[[], None]]] = deque()
        self.minted: Callable[[UUID], int] = lambda _: 0
        """The counters in Redis from which the mutation "token" takes fences."""

    def line(self, run_id: UUID | None) -> Iterator[Row]:
        """A run and those before it in its session, down to one that has begun: all before that one
        are over.
        """
        while run_id is not None:
            row = self.runs[run_id]
            yield row
            run_id = None if row["started"] else row["prev_run_id"]

    # Durability

    def _later(self, undo: Callable[[], None]) -> None:
        """Note an asynchronous commit (`SET LOCAL synchronous_commit = off`)."""
        now = self.world.now
        while self.undo and self.undo[0][0] < now - WAL_WRITER_S * US:
            self.undo.popleft()
        self.undo.append((now, undo))

    def flush(self) -> None:
        """Note a synchronous commit: it puts all that came before it on disk too."""
        if self.mutate != "async_commit":
            self.undo.clear()

    def crash(self) -> int:
        """Forget asynchronous commits that were not on disk; how many is the dice's business."""
        fresh = [u for t, u in self.undo if t >= self.world.now - WAL_WRITER_S * US]
        lost = self.world.rng.choice((len(fresh), self.world.rng.randint(0, len(fresh))))
        for undo in reversed(fresh[len(fresh) - lost :]):
            undo()
        self.undo.clear()
        return lost

    def _snapshot(self, run_id: UUID) -> Callable[[], None]:
        """Return how to forget what is written to a run from now on."""
        row, slots = dict(self.runs[run_id]), dict(self.slots[self.runs[run_id]["tenant_id"]])
        n_events, n_messages = len(self.events[run_id]), len(self.messages[run_id])
        steps, n_inputs = dict(self.checkpoints[run_id]), len(self.inputs[run_id])
        calls = {k: [dict(c) for c in v] for k, v in self.calls.items() if k[0] == run_id}
        approvals = [dict(a) for a in self.approvals.get(run_id, ())]

        def undo() -> None:
            self.runs[run_id] = row
            self.slots[row["tenant_id"]].update(slots)
            del self.events[run_id][n_events:], self.messages[run_id][n_messages:]
            del self.inputs[run_id][n_inputs:]
            self.checkpoints[run_id] = steps
            self.approvals[run_id] = approvals
            for key in [k for k in self.calls if k[0] == run_id]:
                del self.calls[key]
            self.calls.update(calls)

        return undo

    def _write(self, run_id: UUID) -> None:
        if self.mutate == "async_commit":
            self._later(self._snapshot(run_id))
        else:
            self.undo.clear()

    def add_event(self, run_id: UUID, seq: int, type_: str, step: int | None) -> None:
        log = self.events[run_id]
        if seq != len(log) + 1:
            raise Violation("INV5", f"event {seq} of run {run_id} after {len(log)}")
        log.append({"seq": seq, "type": type_, "step": step})

    def _call(self, run_id: UUID, step: int, idx: int) -> Row:
        """Find a ledger row that its caller has read: rows are never deleted."""
        for call in self.calls.get((run_id, step), ()):
            if call["idx"] == idx:
                return call
        raise Violation("INV1", f"call {step}.{idx} of run {run_id} is gone")

    def child(self, run_id: UUID, step: int, idx: int) -> Row | None:
        """The child run of one call: child_read.sql. The unique index lets there be one."""
        for r in self.runs.values():
            if (r["parent_run_id"], r["parent_step"], r["parent_idx"]) == (run_id, step, idx):
                return r
        return None


def bell_queue(row: Row) -> str:
    """Name the queue where a run is rung, as the SQL does."""
    queue: str = row["queue"]
    return queue + ".quarantine" if row["deaths"] >= 2 else queue


def as_json(call: Row) -> Row:
    """Write a ledger row as `to_jsonb` does, as far as `PendingCall` reads it."""
    return call | {
        "attempt_id": call["attempt_id"] and str(call["attempt_id"]),
        "resume_at": call["resume_at"] and call["resume_at"].isoformat(),
    }


def first_slot(tenant_id: UUID, max_running: int, granted: int = 0) -> Row:
    """Build a row of `tenant_slots`."""
    return {
        "tenant_id": tenant_id, "running": 0, "max_running": max_running, "granted": granted,
        "last_admitted_at": None, "weight": 1.0, "used_s": 0.0, "turn_sum": 0.0, "crowded": False,
        "starts_per_s": None, "starts_tat_s": None, "steps_per_s": None, "steps_tat": None,
        "places_tat": None,
    }  # fmt: skip


_FIRST: Final[Row] = dict.fromkeys(
    ("claim_id", "claimed_by", "claimed_at", "committed_by", "held_for", "prev_run_id",
     "not_before", "stop_reason", "error", "output", "rung_at", "wake_at", "waiting", "turn_at",
     "concurrency_key", "parent_run_id", "parent_step", "parent_idx", "reserved_day", "finished_at",
     "queued_at"),
) | {
    "agent_name": "a", "agent_version": 1, "queue": QUEUE, "priority": 6, "trace_id": "",
    "attempt": 0, "fence": 0, "last_input_n": 0, "rings": 0, "failures": 0, "limited": 0,
    "deaths": 0, "cancel_requested": False, "pause_requested": False, "input_tokens": 0,
    "output_tokens": 0, "cost_usd": 0.0, "next_seq": 1, "overrides": {}, "depth": 0,
    "concurrency_max": 1, "reserved_tokens": 0, "reserved_usd": 0.0,
}  # fmt: skip
_RETRY: dict[RetryRule, Row] = {}


def first_row(tenant_id: UUID, run_id: UUID, state: RunState) -> Row:
    """Build a row of `runs` as start_insert.sql leaves it."""
    retry = _RETRY.get(state.retry)
    if retry is None:
        retry = _RETRY[state.retry] = asdict(state.retry)
    return _FIRST | {
        "tenant_id": tenant_id, "id": run_id, "session_id": run_id, "agent_id": tenant_id,
        "status": str(state.status), "version": state.version, "step": state.step,
        "next_kind": state.next_kind, "turn": state.turn, "messages": state.messages,
        "memo": dict(state.memo), "started": state.started, "turn_at": state.turn_at,
        "limits": state.limits.to_json(), "retry": retry,
    }  # fmt: skip
