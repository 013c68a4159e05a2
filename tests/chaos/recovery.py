"""How long the runs that a dead, frozen or cut-off process held wait for somebody else."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

import psycopg

from tests.chaos.stack import ChaosStack

Why = Literal["killed", "frozen"]
_POLL_S = 0.04
_PATIENCE_S = 60.0


@dataclass(slots=True)
class Samples:
    """Seconds from the fault to the next claim, one a run, and what could not be measured."""

    seconds: list[float] = field(default_factory=list)
    unmeasured: int = 0
    never: list[str] = field(default_factory=list)


class Recovery:
    """Asks Postgres what a process held at its death, then looks until others hold it."""

    def __init__(self, stack: ChaosStack) -> None:
        self._stack = stack
        self._pool = ThreadPoolExecutor(8, thread_name_prefix="recovery")
        self._lock = threading.Lock()
        self.samples: dict[Why, Samples] = {"killed": Samples(), "frozen": Samples()}

    def watch(self, why: Why, incarnation: UUID, began: float) -> Future[float] | None:
        """Begin to measure; call at once after the fault. `began` is of `time.monotonic()`."""
        try:
            held = self._stack.ask(
                "SELECT id, claim_id, version FROM runs "
                "WHERE claimed_by = %s AND claim_id IS NOT NULL",
                incarnation,
            )
        except psycopg.Error:
            with self._lock:
                self.samples[why].unmeasured += 1
            return None
        if not held:
            return None
        return self._pool.submit(self._follow, why, {row["id"]: row for row in held}, began)

    def _follow(self, why: Why, held: dict[UUID, dict[str, Any]], began: float) -> float:
        last = 0.0
        while held and time.monotonic() - began < _PATIENCE_S:
            time.sleep(_POLL_S)
            try:
                rows = self._stack.ask(
                    "SELECT id, claim_id, version, status FROM runs WHERE id = ANY(%s)",
                    list(held),
                )
            except psycopg.Error:
                continue
            last = time.monotonic() - began
            done = [row["id"] for row in rows if _moved_on(held[row["id"]], row)]
            for run in done:
                del held[run]
            with self._lock:
                self.samples[why].seconds += [last] * len(done)
        with self._lock:
            self.samples[why].never += [f"run_{run.hex}" for run in held]
        return last

    def finish(self) -> None:
        """Wait for what is being followed."""
        self._pool.shutdown(wait=True)


def _moved_on(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Tell whether somebody else has the run, or it went on without anybody."""
    claimed = now["claim_id"] not in {None, before["claim_id"]}
    return claimed or now["status"] != "running" or now["version"] >= before["version"] + 2
