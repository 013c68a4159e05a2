"""What goes wrong: processes die and freeze, servers crash and forget, ways are cut.

Each seed draws which kinds it has (swarm testing): few kinds at once reach further than all of them
together, and one seed in twelve has none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.sim.bus import BellWeather
from tests.sim.world import US, Process, Weather

if TYPE_CHECKING:
    from tests.sim.sim import Sim


class Faults:
    """The plan of one seed's faults; all of them are over at `until_s`."""

    def __init__(self, sim: Sim) -> None:
        self.sim, self.world, self.rng = sim, sim.world, sim.world.rng
        rng = self.rng
        self.until_s = rng.uniform(4.0, 14.0)
        self.api_forgets = 0.0
        share = 0.0 if rng.random() < 0.08 else rng.choice((0.15, 0.3, 0.6))
        kinds = [kind for kind in KINDS if rng.random() < share]
        for kind in kinds:
            for _ in range(rng.randint(1, 2)):
                self.world.at(rng.random() * self.until_s, self._strike, kind)
        if rng.random() < share:
            loss = rng.choice((0.01, 0.04))
            self.world.weather = Weather(loss, loss, loss)
        if rng.random() < share:
            loss = rng.choice((0.05, 0.3))
            sim_bus = sim.bus
            sim_bus.weather = BellWeather(loss, loss, loss)
        if rng.random() < share:
            self.api_forgets = 0.3
        self.world.at(self.until_s, self._calm)

    def _strike(self, kind: str) -> None:
        KINDS[kind](self)

    def _calm(self) -> None:
        self.world.weather = Weather()
        self.sim.bus.weather = BellWeather()
        self.api_forgets = 0.0
        self.world.log("faults are over")

    def _note(self, kind: str, *about: object) -> None:
        self.world.faults[kind] += 1
        self.world.log("FAULT ", kind, *about)

    def _for_s(self, least: float, most: float) -> float:
        """Draw how long a fault lasts: never beyond the time when all are over."""
        left = self.until_s - self.world.s
        return max(0.0, min(left, self.rng.uniform(least, most)))

    def _worker(self) -> int | None:
        alive = [i for i, w in enumerate(self.sim.workers) if w.proc.alive and not w.stopping]
        if not alive:
            return None
        busy = [i for i in alive if self.sim.workers[i].held]
        return self.rng.choice(busy or alive)

    # Workers

    def kill_worker(self) -> None:
        """SIGKILL: the supervisor sees it and says so; another takes its place."""
        if (n := self._worker()) is None:
            return
        worker = self.sim.workers[n]
        self._note("worker killed", worker.proc.name)
        worker.proc.alive = False
        self.world.at(0.05 + 0.3 * self.rng.random(), self._report, worker.proc)
        self._replace(worker.proc.name)

    def _report(self, proc: Process) -> None:
        """The supervisor reports a death once; nobody repeats what Postgres did not hear."""
        if self.sim.postgres.down_until <= self.world.now and self.rng.random() < 0.8:
            self.sim.store.worker_died(proc.id, "killed", False, 0.0, None)

    def _replace(self, name: str) -> None:
        base, _, n = name.partition("'")
        self.world.at(
            0.3 + self.rng.random(),
            self.sim.add_worker,
            f"{base}'{int(n or 0) + 1}",
        )

    def lose_host(self) -> None:
        """The machine is gone: nobody says so."""
        if (n := self._worker()) is None:
            return
        worker = self.sim.workers[n]
        self._note("host lost", worker.proc.name)
        worker.proc.alive = False
        self._replace(worker.proc.name)

    def freeze_worker(self) -> None:
        """SIGSTOP, often beyond the lease; then it goes on where it was."""
        if (n := self._worker()) is None:
            return
        proc, s = self.sim.workers[n].proc, self._for_s(0.5, 9.0)
        self._note("worker frozen", proc.name, f"{s:.2f} s")
        proc.frozen_until = proc.thawed_at = self.world.now + int(s * US)

    def terminate_worker(self) -> None:
        """SIGTERM: it hands over and leaves."""
        if (n := self._worker()) is None:
            return
        worker = self.sim.workers[n]
        self._note("worker terminated", worker.proc.name)
        worker.stop(self.rng.uniform(0.0, 2.0))
        self._replace(worker.proc.name)

    def cut_worker_from_postgres(self) -> None:
        self._cut_worker("postgres")

    def cut_worker_from_redis(self) -> None:
        self._cut_worker("redis")

    def _cut_worker(self, server: str) -> None:
        if (n := self._worker()) is None:
            return
        proc, s = self.sim.workers[n].proc, self._for_s(0.5, 8.0)
        self._note(f"worker cut off from {server}", proc.name, f"{s:.2f} s")
        proc.cut[server] = proc.last_cut[server] = self.world.now + int(s * US)

    # Schedulers

    def kill_scheduler(self) -> None:
        found = [s for s in self.sim.schedulers if s.proc.alive]
        leaders = [s for s in found if s.term is not None]
        if not found:
            return
        scheduler = self.rng.choice(leaders or found)
        self._note("scheduler killed", scheduler.proc.name)
        scheduler.proc.alive = False
        base, _, n = scheduler.proc.name.partition("'")
        self.world.at(0.5 + self.rng.random(), self.sim.add_scheduler, f"{base}'{int(n or 0) + 1}")

    def freeze_scheduler(self) -> None:
        """A leader that stops long enough to lose its term, and wakes believing in it."""
        found = [s for s in self.sim.schedulers if s.proc.alive]
        leaders = [s for s in found if s.term is not None]
        if not found:
            return
        proc, s = self.rng.choice(leaders or found).proc, self._for_s(0.5, 8.0)
        self._note("scheduler frozen", proc.name, f"{s:.2f} s")
        proc.frozen_until = self.world.now + int(s * US)

    def cut_scheduler(self) -> None:
        found = [s for s in self.sim.schedulers if s.proc.alive]
        if not found:
            return
        proc = self.rng.choice(found).proc
        server, s = self.rng.choice(("postgres", "redis")), self._for_s(0.5, 6.0)
        self._note(f"scheduler cut off from {server}", proc.name, f"{s:.2f} s")
        proc.cut[server] = self.world.now + int(s * US)

    # Servers

    def crash_postgres(self) -> None:
        """Postgres dies and recovers: asynchronous commits may be forgotten, replies lost."""
        server, s = self.sim.postgres, self._for_s(0.2, 3.0)
        forgot = self.sim.store.crash()
        self._note("postgres crashed", f"{s:.2f} s, forgets", forgot)
        if forgot:
            self.world.faults["postgres forgot a claim or heartbeat"] += 1
        server.epoch += 1
        server.down_until = self.world.now + int(s * US)

    def lose_postgres(self) -> None:
        """Nobody reaches Postgres, for longer than a lease at times; nothing is forgotten."""
        s = self._for_s(1.0, 9.0)
        self._note("postgres unreachable", f"{s:.2f} s")
        self.sim.postgres.down_until = self.world.now + int(s * US)

    def flush_redis(self) -> None:
        self._note("redis flushed")
        self.sim.bus.flush()

    def restart_redis(self) -> None:
        s = self._for_s(0.1, 4.0)
        self._note("redis restarted", f"{s:.2f} s")
        self.sim.bus.restart(s)

    def lose_redis(self) -> None:
        """Nobody reaches Redis for a while; it keeps what it has."""
        s = self._for_s(0.5, 6.0)
        self._note("redis unreachable", f"{s:.2f} s")
        self.sim.redis.down_until = self.world.now + int(s * US)


KINDS: Final[dict[str, Callable[[Faults], None]]] = {
    f.__name__: f
    for f in (
        Faults.kill_worker, Faults.lose_host, Faults.freeze_worker, Faults.terminate_worker,
        Faults.cut_worker_from_postgres, Faults.cut_worker_from_redis, Faults.kill_scheduler,
        Faults.freeze_scheduler, Faults.cut_scheduler, Faults.crash_postgres, Faults.lose_postgres,
        Faults.flush_redis, Faults.restart_redis, Faults.lose_redis,
    )
}  # fmt: skip
