"""The tables of the simulated Postgres, and what a crash of it forgets.

Rows are dicts with the columns' names. Claims and heartbeats commit asynchronously: `crash` may
forget them, newest first, unless a synchronous commit came later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Final
from uuid import UUID

from harness_common.core.run import RunState
from tests.sim.auditor import Auditor
from tests.sim.world import US, Violation, World

Row = dict[str, Any]
WAL_WRITER_S: Final = 0.6
"""An asynchronous commit is on disk after at most three rounds of the WAL writer (200 ms each)."""


class Tables:
    """The rows, and their durability."""

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
        lost = self.world.rng.choice((len(fresh), self.world.rng.randint(0, len(fresh))))
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


def as_json(call: Row) -> Row:
    """Write a ledger row as `to_jsonb` does, as far as `PendingCall` reads it."""
    return call | {
        "attempt_id": call["attempt_id"] and str(call["attempt_id"]),
        "resume_at": call["resume_at"] and call["resume_at"].isoformat(),
    }


def first_row(tenant_id: UUID, run_id: UUID, state: RunState) -> Row:
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
        "limits": state.limits.to_json(), "retry": asdict(state.retry), "next_seq": 1,
        "queued_at": None,
    }  # fmt: skip
    return row
