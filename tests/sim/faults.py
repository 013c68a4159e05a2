"""What goes wrong: processes die and freeze, servers crash and forget, ways are cut.

Each seed draws which kinds it has (swarm testing): few kinds at once reach further than all of them
together, and one seed in twelve has none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import UUID

from tests.sim.bus import BellWeather
from tests.sim.world import US, Process, Weather

if TYPE_CHECKING:
    from tests.sim.sim import Sim
    from tests.sim.worker import Worker


class Faults:
    """The plan of one seed's faults; all of them are over at `until_s`."""

    def __init__(self, sim: Sim) -> None:
        self.sim, self.world, self.rng = sim, sim.world, sim.world.rng
        rng = self.rng
        self.until_s = rng.uniform(2.0, 6.5)
        self.api_forgets = 0.0
        share = 0.0 if rng.random() < 0.08 else rng.choice((0.15, 0.3, 0.6))
        kinds = [kind for kind in KINDS if rng.random() < share]
        if rng.random() < 0.2:
            kinds += ["fail_power"] * 3
        self.needs_standby = "freeze_leader" in kinds
        if {"freeze_leader", "usurp", "outlast"} & set(kinds):
            self.until_s = max(self.until_s, 7.0)  # they take longer than a lease
        for kind in kinds:
            if kind in LONG:
                self.world.at(rng.random() * 1.5, self._strike, kind)
                continue
            for _ in range(rng.randint(1, 2)):
                self.world.at(rng.random() * self.until_s, self._strike, kind)
        if rng.random() < share:
            loss = rng.choice((0.01, 0.04))
            self.world.weather = Weather(loss, loss, loss)
        if rng.random() < share:
            loss = rng.choice((0.05, 0.3))
            sim.bus.weather = BellWeather(loss, loss, loss)
        if share and rng.random() < 0.4:
            sim.bus.weather.signal = 0.9
        if rng.random() < share:
            self.api_forgets = 0.3
        self.world.at(self.until_s, self._calm)

    def _strike(self, kind: str) -> None:
        KINDS[kind](self)

    def _calm(self) -> None:
        self.world.weather = Weather()
        self.sim.bus.weather = BellWeather()
        self.api_forgets = 0.0
        self.sim.audit.at_claim = self.sim.audit.at_intent = None
        self.world.log("faults are over")

    def _note(self, kind: str, *about: object) -> None:
        self.world.faults[kind] += 1
        self.world.log("FAULT ", kind, *about)

    def _for_s(self, least: float, most: float) -> float:
        """Draw how long a fault lasts: never beyond the time when all are over."""
        left = self.until_s - self.world.s
        return max(0.0, min(left, self.rng.uniform(least, most)))

    def _worker(self) -> Worker | None:
        """Draw a worker, one that holds runs if there is one."""
        alive = [w for w in self.sim.workers if w.proc.alive and not w.stopping]
        busy = [w for w in alive if w.held]
        return self.rng.choice(busy or alive) if alive else None

    def _strike_at(self, proc: Process, most: int, strike: Callable[[], None]) -> None:
        """Strike now, or where the process next awaits something: each such point is as likely."""
        if self.rng.random() < 0.4:
            strike()
            return
        proc.trap, proc.trap_in = strike, self.rng.randint(1, most)

    # Workers

    def kill_worker(self) -> None:
        """SIGKILL: the supervisor sees it and says so; another takes its place."""
        if (worker := self._worker()) is not None:
            self._strike_at(worker.proc, 10, partial(self.kill, worker, True))

    def lose_host(self) -> None:
        """The machine is gone: nobody says so."""
        if (worker := self._worker()) is not None:
            self._strike_at(worker.proc, 10, partial(self.kill, worker, False))

    def kill(self, worker: Worker, seen: bool) -> None:
        """End a process; another takes its place. `seen`: by its supervisor, which says so."""
        proc = worker.proc
        self._note("worker killed" if seen else "host lost", proc.name)
        proc.alive = False
        self.sim.audit.ended(proc.id, list(worker.held))
        if seen:
            self.world.at(0.05 + 0.3 * self.rng.random(), self._report, proc)
        self.sim.replace_worker(worker)
        self.sim.quarantine.hurry()

    def _report(self, proc: Process) -> None:
        """The supervisor reports a death once; nobody repeats what Postgres did not hear."""
        if self.sim.postgres.down_until <= self.world.now and self.rng.random() < 0.8:
            self.sim.store.worker_died(proc.id, "killed", None, 0.0, None)

    def freeze_worker(self) -> None:
        """SIGSTOP, often beyond the lease; then it goes on where it was."""
        if (worker := self._worker()) is not None:
            self._strike_at(worker.proc, 10, partial(self._freeze, worker.proc, "worker"))

    def _freeze(self, proc: Process, what: str) -> None:
        self._sleep(proc, what, self._for_s(0.5, 9.0))

    def usurp(self) -> None:
        """A worker sleeps longer than its lease, and Redis forgets before the next one begins."""
        if (worker := self._worker()) is not None:
            s = self.sim.lease_s + self.rng.uniform(0.5, 2.5)
            self._strike_at(worker.proc, 6, partial(self._sleep, worker.proc, "worker", s))
            self.world.at(self.sim.lease_s - 0.5, self.flush_redis)

    def _sleep(self, proc: Process, what: str, s: float) -> None:
        self._note(f"{what} frozen", proc.name, f"{s:.2f} s")
        proc.frozen_until = proc.thawed_at = self.world.now + int(s * US)

    def terminate_worker(self) -> None:
        """SIGTERM: it hands over and leaves."""
        if (worker := self._worker()) is not None:
            self._note("worker terminated", worker.proc.name)
            worker.stop(self.rng.uniform(0.0, 2.0))
            self.sim.replace_worker(worker)

    def cut_worker_from_postgres(self) -> None:
        """A black hole between a worker and Postgres."""
        if (worker := self._worker()) is not None:
            cut = partial(self._cut, worker.proc, "worker", "postgres")
            self._strike_at(worker.proc, 10, cut)

    def cut_worker_from_redis(self) -> None:
        """A black hole between a worker and Redis."""
        if (worker := self._worker()) is not None:
            self._strike_at(worker.proc, 10, partial(self._cut, worker.proc, "worker", "redis"))

    def _cut(self, proc: Process, what: str, server: str) -> None:
        s = self._for_s(0.5, 8.0)
        self._note(f"{what} cut off from {server}", proc.name, f"{s:.2f} s")
        proc.cut[server] = proc.last_cut[server] = self.world.now + int(s * US)

    # Schedulers

    def _scheduler(self) -> Process | None:
        """Draw a scheduler, the leader if there is one."""
        found = [s for s in self.sim.schedulers if s.proc.alive]
        leaders = [s for s in found if s.term is not None]
        return self.rng.choice(leaders or found).proc if found else None

    def kill_scheduler(self) -> None:
        """SIGKILL; another comes up."""
        if (proc := self._scheduler()) is not None:
            self._strike_at(proc, 8, partial(self._kill_scheduler, proc))

    def _kill_scheduler(self, proc: Process) -> None:
        self._note("scheduler killed", proc.name)
        proc.alive = False
        self.world.at(0.5 + self.rng.random(), self.sim.add_scheduler, next_name(proc.name))

    def freeze_scheduler(self) -> None:
        """A leader that stops long enough to lose its term, and wakes believing in it."""
        if (proc := self._scheduler()) is not None:
            self._strike_at(proc, 8, partial(self._freeze, proc, "scheduler"))

    def freeze_leader(self) -> None:
        """A leader that sleeps until another leads, in the middle of whatever it does."""
        if (proc := self._scheduler()) is not None:
            s = self.sim.leader_ttl_s + self.rng.uniform(0.3, 1.5)
            self._strike_at(proc, 8, partial(self._sleep, proc, "scheduler", s))

    def cut_scheduler(self) -> None:
        """A black hole between a scheduler and one of the servers."""
        if (proc := self._scheduler()) is not None:
            server = self.rng.choice(("postgres", "redis"))
            self._strike_at(proc, 8, partial(self._cut, proc, "scheduler", server))

    # Servers

    def crash_postgres(self, most_s: float = 3.0) -> None:
        """Postgres dies and recovers: asynchronous commits may be forgotten, replies lost."""
        server, s = self.sim.postgres, self._for_s(0.2, most_s)
        forgot = self.sim.store.crash()
        self._note("postgres crashed", f"{s:.2f} s, forgets", forgot)
        if forgot:
            self.world.faults["postgres forgot a claim or heartbeat"] += 1
        server.epoch += 1
        server.go_down(self.world.now, s)

    def fail_power(self) -> None:
        """The machine of both stores goes down right after somebody's claim, which they forget."""
        self.sim.audit.at_claim = self._fail_power

    def _fail_power(self, owner: Process) -> None:
        self._note("power failed")
        self.crash_postgres(0.6)
        self.restart_redis(0.3)
        if self.rng.random() < 0.7:
            for server in ("postgres", "redis"):  # the way to them takes longer to come back
                self._cut(owner, "worker", server)

    def cancel_in_write(self) -> None:
        """Somebody cancels a run in the middle of its writes, and its worker is not told."""
        self.sim.bus.weather.signal = 1.0
        self.sim.audit.at_intent = self._cancel

    def _cancel(self, run_id: UUID) -> None:
        self.sim.people += 1
        self.sim.ask(run_id, "cancel")

    def lose_postgres(self) -> None:
        """Nobody reaches Postgres, for longer than a lease at times; nothing is forgotten."""
        s = self._for_s(1.0, 9.0)
        self._note("postgres unreachable", f"{s:.2f} s")
        self.sim.postgres.go_down(self.world.now, s)

    def outlast(self) -> None:
        """Postgres is away for longer than a lease: nobody can be heard."""
        s = self.sim.lease_s + self.rng.uniform(0.0, 1.5)
        self._note("postgres unreachable", f"{s:.2f} s")
        self.sim.postgres.go_down(self.world.now, s)

    def flush_redis(self) -> None:
        self._note("redis flushed")
        self.sim.bus.flush()

    def restart_redis(self, most_s: float = 4.0) -> None:
        """Redis dies and comes back empty."""
        s = self._for_s(0.1, most_s)
        self._note("redis restarted", f"{s:.2f} s")
        self.sim.bus.restart(s)

    def lose_redis(self) -> None:
        """Nobody reaches Redis for a while; it keeps what it has."""
        s = self._for_s(0.5, 6.0)
        self._note("redis unreachable", f"{s:.2f} s")
        self.sim.redis.go_down(self.world.now, s)


def next_name(name: str) -> str:
    """Name the process that takes another's place."""
    base, _, n = name.partition("'")
    return f"{base}'{int(n or 0) + 1}"


KINDS: Final[dict[str, Callable[[Faults], None]]] = {
    f.__name__: f
    for f in (
        Faults.kill_worker, Faults.lose_host, Faults.freeze_worker, Faults.terminate_worker,
        Faults.cut_worker_from_postgres, Faults.cut_worker_from_redis, Faults.kill_scheduler,
        Faults.freeze_scheduler, Faults.cut_scheduler, Faults.crash_postgres, Faults.fail_power,
        Faults.lose_postgres, Faults.flush_redis, Faults.restart_redis, Faults.lose_redis,
        Faults.cancel_in_write, Faults.usurp, Faults.freeze_leader, Faults.outlast,
    )
}  # fmt: skip
LONG: Final = frozenset({"usurp", "freeze_leader", "outlast", "cancel_in_write"})
"""Kinds that strike early: they last longer than a lease, or wait for a moment."""
