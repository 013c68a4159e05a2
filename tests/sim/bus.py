"""Redis: doorbells that get lost, doubled and delayed; leases with a life time; signals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from tests.sim.tables import QUEUE
from tests.sim.world import US, Process, Server, World

if TYPE_CHECKING:
    from tests.sim.worker import Worker


@dataclass(slots=True)
class BellWeather:
    """How likely a doorbell is disturbed."""

    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    signal: float = 0.0
    """How likely a signal (a published cancel) is lost."""


class Bus:
    """What Redis holds: all of it may vanish at any moment."""

    def __init__(self, world: World, server: Server, lease_s: float) -> None:
        self.world, self.server = world, server
        self.lease_us = int(lease_s * US)
        self.leases: dict[UUID, tuple[str, int]] = {}
        self.marker = False
        self.counters: Counter[UUID] = Counter()
        self.one_queue = False
        """The mutation "suspect": every doorbell goes to the ordinary queue."""
        self.flushes = 0
        self.run_id = 0
        """Redis' own id: another after each restart."""
        self.weather = BellWeather()
        self.consumers: list[Worker] = []
        self.sleepers: list[Callable[[], None]] = []

    def flush(self) -> None:
        """FLUSHALL: leases, queues and the marker are gone."""
        self.leases.clear()
        self.marker = False
        self.counters.clear()
        self.flushes += 1

    def restart(self, down_s: float) -> None:
        """Redis dies, comes back empty, and its clients connect again."""
        self.flush()
        self.server.go_down(self.world.now, down_s)
        self.server.epoch += 1
        self.run_id += 1

    def mint(self, run_id: UUID) -> int:
        """Count, as INCR does: only the mutation "token" relies on it."""
        self.counters[run_id] += 1
        return self.counters[run_id]

    # Leases (coord/lease.py)

    def _held(self, run_id: UUID) -> str | None:
        owner, until = self.leases.get(run_id, ("", 0))
        return owner if until > self.world.now else None

    def take(self, run_id: UUID, owner: str) -> bool:
        held = self._held(run_id)
        if held is None:
            self.leases[run_id] = (owner, self.world.now + self.lease_us)
        return held is None or held == owner

    def release(self, run_id: UUID, owner: str) -> None:
        if self._held(run_id) == owner:
            del self.leases[run_id]

    def break_lease(self, run_id: UUID, worker: UUID) -> None:
        held = self._held(run_id)
        if held is not None and held.startswith(f"{worker.hex}:"):
            del self.leases[run_id]

    def holders(self, run_ids: list[UUID]) -> dict[UUID, UUID]:
        held = {run_id: self._held(run_id) for run_id in run_ids}
        return {run: UUID(hex=owner.partition(":")[0]) for run, owner in held.items() if owner}

    def renew(self, held: list[tuple[UUID, str]]) -> tuple[list[UUID], list[UUID]]:
        taken, vanished = [], []
        for run_id, owner in held:
            now_held = self._held(run_id)
            if now_held == owner:
                self.leases[run_id] = (owner, self.world.now + self.lease_us)
            elif now_held is not None:
                taken.append(run_id)
            else:
                vanished.append(run_id)
        return taken, vanished

    def connected(self, processes: list[Process]) -> set[UUID]:
        """CLIENT LIST: processes with an open connection (a frozen one has one)."""
        return {p.id for p in processes if p.alive and p.cut.get("redis", 0) <= self.world.now}

    # Doorbells (broker/publish.py) and signals (coord/channel.py)

    def ring(self, ringer: Process, run_id: UUID, version: int, queue: str = QUEUE) -> None:
        """Ring from a process' bell thread: never waits, never raises."""
        world, weather = self.world, self.weather
        queue = QUEUE if self.one_queue else queue
        if ringer.cut.get("redis", 0) > world.now or self.server.down_until > world.now:
            world.faults["bell not sent"] += 1
            world.log("bell   not sent", run_id.hex[:4], "v", version)
            return
        lag, dice = 0.002 + 0.004 * world.rng.random(), world.rng.random()
        if dice < weather.lose:
            world.faults["bell lost"] += 1
            world.log("FAULT  bell lost", run_id.hex[:4], "v", version)
            return
        if dice < weather.lose + weather.double:
            world.faults["bell doubled"] += 1
            world.at(
                lag + 5.0 * world.rng.random() ** 2,
                self._deliver,
                run_id,
                version,
                queue,
                self.flushes,
            )
        elif dice < weather.lose + weather.double + weather.delay:
            world.faults["bell delayed"] += 1
            lag += 8.0 * world.rng.random() ** 2
        world.at(lag, self._deliver, run_id, version, queue, self.flushes)

    def _deliver(self, run_id: UUID, version: int, queue: str, flushes: int) -> None:
        if flushes != self.flushes:
            return  # it waited in a queue that is gone
        ready = [
            w
            for w in self.consumers
            if w.proc.alive
            and not w.stopping
            and w.proc.cut.get("redis", 0) <= self.world.now
            and queue in w.queues
            and w.busy < w.concurrency
        ]
        if not ready or self.server.down_until > self.world.now:
            self.world.at(0.25, self._deliver, run_id, version, queue, flushes)
            return
        ready[self.world.rng.randrange(len(ready))].hear(run_id, version)

    def signal_cancel(self, sender: Process, worker: UUID, run_id: UUID) -> None:
        """Publish a cancel to the process that holds the run; nobody keeps it."""
        world = self.world
        if sender.cut.get("redis", 0) > world.now or self.server.down_until > world.now:
            return
        if world.rng.random() < self.weather.signal:
            world.faults["signal lost"] += 1
            return
        world.at(0.003, self._cancel, worker, run_id)

    def _cancel(self, worker: UUID, run_id: UUID) -> None:
        for w in self.consumers:
            if (
                w.proc.id == worker
                and w.proc.alive
                and w.proc.cut.get("redis", 0) <= self.world.now
            ):
                w.signalled(run_id)

    def nudge(self, sender: Process) -> None:
        """Wake the schedulers early."""
        if sender.cut.get("redis", 0) <= self.world.now >= self.server.down_until:
            for wake in self.sleepers:
                wake()
