"""The reaper: finds worker processes that died and gives their runs back. Death is judged by
liveness, never by a step's age.

A process is dead when its heartbeat row is older than a lease, when its supervisor saw it die, or
(fast path) when its named Redis connection was absent in two samples a second apart while Redis
itself did not restart and other workers are connected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import structlog

from harness_common.coord.redis import RedisFault
from harness_common.core.errors import IllegalTransition
from harness_common.core.ids import encode
from harness_common.core.liveness import SAMPLE_APART_S, Absence, Watch, loss
from harness_common.core.rules import advance, is_suspect
from harness_common.core.run import Status
from harness_common.store.apply import apply
from harness_common.store.connection import Row
from harness_common.store.rows import StoredRun, run_from_row
from harness_common.store.spans import send_lost
from harness_common.store.writes import Applied, Write
from harness_common.telemetry.traces import traces
from harness_worker.scheduler import metrics
from harness_worker.scheduler.looper import HELD_S, REDIS_PATIENCE_S, Look, Shared

log = structlog.get_logger()

_OVERDUE_AGAIN_S = 30.0
BATCH = 50
"""Runs given back in one commit."""


class ReapLoop:
    """Declares death and recovers."""

    name = "reap"

    def __init__(self, shared: Shared, prefix: str = "harness-worker-") -> None:
        self._shared = shared
        self._prefix = prefix
        self._watch = Watch(shared.settings.worker.lease_s)
        self._absence = Absence()
        self._recovered_at = 0.0
        self._redis_run_id: str | None = None
        self._redis_changed_at = time.monotonic()
        self._looked_at = 0.0

    async def run_once(self, look: Look) -> int:
        """Declare the dead, then recover their runs."""
        self.watch(look)
        died = await self._condemn_silent(look) if look.stale else 0
        died += await self._condemn_absent()
        recovered = 0
        overdue = look.due_in_s is not None and look.due_in_s <= 0
        if died or look.orphaned or (overdue and time.monotonic() - self._recovered_at > 1.0):
            self._recovered_at = time.monotonic()
            recovered = await self._recover()
            await self._shared.db.fetch(
                "overdue", {"again_s": _OVERDUE_AGAIN_S, "term": self._shared.term}
            )
        self._shared.count("workers_died", died)
        self._shared.count("runs_recovered", recovered)
        return died + recovered

    def watch(self, look: Look) -> None:
        """Note that this scheduler sees Postgres (see `liveness.Watch`)."""
        self._watch.look(look.now)

    async def _condemn_silent(self, look: Look) -> int:
        lease_s = self._shared.settings.worker.lease_s
        if not self._watch.silence_counts(look.now):
            return 0
        died = 0
        for row in await self._shared.db.fetch("workers_alive", {}):
            if row["silent_s"] > lease_s:
                why = f"no heartbeat for {row['silent_s']:.1f} s"
                died += await self._condemn(row["incarnation"], why, silent_at=look.now)
        return died

    async def _condemn_absent(self) -> int:
        """Compare the workers that should be there with the connections that Redis has."""
        now = time.monotonic()
        if now - self._looked_at < SAMPLE_APART_S / 2:
            return 0
        self._looked_at = now
        connected = await self._connected()
        if connected is None or now - self._redis_changed_at < self._shared.settings.worker.lease_s:
            self._absence.since.clear()
            return 0
        if not connected and not self._absence.since:
            return 0
        died = 0
        alive = await self._shared.db.fetch("workers_alive", {})
        silent_s = {row["incarnation"]: row["silent_s"] for row in alive}
        for worker in self._absence.absent(now, connected, silent_s):
            died += await self._condemn(worker, "its connection is gone", silent_at=None)
            self._absence.since.pop(worker, None)
        return died

    async def _connected(self) -> set[UUID] | None:
        """Return the worker processes that Redis is connected to; None when Redis cannot say."""
        redis = self._shared.redis
        if redis is None:
            return None
        try:
            async with asyncio.timeout(REDIS_PATIENCE_S):
                info = await redis.info("server")
                clients: list[dict[str, Any]] = await redis.client_list()
        except RedisFault:
            self._redis_changed_at = time.monotonic()
            return None
        if info["run_id"] != self._redis_run_id:
            self._redis_run_id, self._redis_changed_at = info["run_id"], time.monotonic()
        names = (str(c.get("name", "")) for c in clients)
        ids = (self._worker_of(name) for name in names if name.startswith(self._prefix))
        return {worker for worker in ids if worker is not None}

    def _worker_of(self, name: str) -> UUID | None:
        """Read whose connection it is; None for a name that somebody else made up."""
        try:
            return UUID(hex=name.removeprefix(self._prefix))
        except ValueError:
            return None

    async def _condemn(self, worker: UUID, why: str, *, silent_at: datetime | None) -> int:
        """Declare a worker dead; for its silence (`silent_at`: when Postgres was looked at) only if
        it is silent still, and this process has not slept since.
        """
        rows = await self._shared.db.fetch(
            "worker_died",
            {
                "worker": worker,
                "why": why,
                "only_if_silent": silent_at is not None,
                "looked_at": silent_at,
                "silent_s": self._shared.settings.worker.lease_s,
                "term": self._shared.term,
            },
        )
        if rows[0]["died"]:
            log.warning("worker.died", worker=str(worker), why=why)
        died: int = rows[0]["died"]
        return died

    async def _recover(self) -> int:
        """Give back what the dead held: many runs a commit, and never for longer than the leader
        may go without renewing its term. What is left is done at the next tick, which comes at
        once.
        """
        until = time.monotonic() + self._shared.settings.scheduler.leader_renew_s
        recovered, skipped = 0, set[UUID]()
        while True:
            found, applied = await self._recover_batch(skipped)
            recovered += len(applied)
            if found < BATCH or time.monotonic() > until:
                return recovered

    async def _recover_batch(self, skipped: set[UUID]) -> tuple[int, list[Applied]]:
        """Clear some dead claims in one commit, compare and delete the leases, then ring.

        Returns how many orphans there were. A run that cannot be read or moved is added to
        `skipped`: it must not hold up its neighbours (INV15).
        """
        shared = self._shared
        async with shared.db.transaction(HELD_S) as conn:
            params = {"skipped": list(skipped), "batch": BATCH}
            rows = await shared.led(conn, "orphans", params)
            writes = [write for row in rows if (write := self._give_back(row, skipped))]
            done = await apply(conn, writes, timeout_s=shared.db.timeout_s) if writes else []
        applied = [one for one in done if one is not None]
        _show(writes, done, {row["id"]: row for row in rows})
        owners = {row["id"]: row["claimed_by"] for row in rows}
        await shared.break_leases([(one.run.id, owners[one.run.id]) for one in applied])
        for one in applied:
            _tell_verdict(one.run)
            shared.ring(one)
        return len(rows), applied

    def _give_back(self, row: Row, skipped: set[UUID]) -> Write | None:
        try:
            run = run_from_row(row)
            lost = loss(
                row["claimed_by"],
                row["worker_name"],
                row["died_why"],
                solo=row["solo"],
                late=row["late"],
            )
            write = Write(run, advance(run.state, [lost], row["now"]), row["now"])
        except (IllegalTransition, KeyError, TypeError, ValueError) as error:
            skipped.add(row["id"])
            log.error("run.skipped", run_id=encode("run", row["id"]), error=repr(error))
            return None
        name = row["worker_name"]
        log.info("run.recovered", run_id=encode("run", run.id), worker=name, why=lost.why)
        return write


def _show(
    writes: Sequence[Write], done: Sequence[Applied | None], rows: Mapping[UUID, Row]
) -> None:
    """Count what was given back, and send the spans that died with their processes."""
    for write, one in zip(writes, done, strict=True):
        if one is None:
            continue
        row = rows[write.run.id]
        reason = metrics.recovery_reason(row["died_why"])
        metrics.recoveries.labels(reason).inc()
        if traces.on:
            send_lost(write.run, row["claimed_at"], row["now"], reason)


def _tell_verdict(run: StoredRun) -> None:
    """Log that a run waits for the quarantine, or that it died there."""
    state = run.state
    if state.stop_reason == "poisoned":
        log.error("run.poisoned", run_id=encode("run", run.id), deaths=state.deaths)
    elif is_suspect(state) and state.status is Status.RUNNING:
        log.warning("run.suspected", run_id=encode("run", run.id), deaths=state.deaths)
