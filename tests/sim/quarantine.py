"""The quarantine as `harness_worker.quarantine` keeps it: a worker process with one place, started
while suspects wait that nobody serves, ended when there are none any more.

Its supervisor does not die here; it begins to look when the first process has died.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from harness_common.core.lease import quarantine_of
from harness_common.store.connection import DatabaseUnavailable
from tests.sim.tables import QUEUE
from tests.sim.world import Call, Code, Nap, Process, Task

if TYPE_CHECKING:
    from tests.sim.sim import Sim
    from tests.sim.worker import Worker

LOOK_S: Final = 2.0
HURRIED_LOOK_S: Final = 0.5
HURRY_S: Final = 1.0
LINGER_S: Final = 2.0


class Quarantine:
    """The supervisor's look at suspects, and its one child."""

    def __init__(self, sim: Sim) -> None:
        self.sim, self.world = sim, sim.world
        self.proc = Process("supervisor", sim.world.uuid())
        self.child: Worker | None = None
        self.ended_s = self.busy_s = 0.0
        self._n = 0
        self._hurry_until = 0.0
        self._task: Task | None = None

    def hurry(self) -> None:
        """Look now, and often for a while: a process died."""
        self._hurry_until = self.world.s + HURRY_S
        self.watch()

    def watch(self) -> None:
        """Look now: some process was declared dead."""
        if self._task is None:
            self._task = self.world.spawn(self.proc, self._watch)
        else:
            self.world.wake(self._task)

    def _watch(self, task: Task) -> Code:
        del task
        while True:
            with suppress(DatabaseUnavailable):
                yield from self._look()
            hurried = self.world.s < self._hurry_until
            yield Nap(HURRIED_LOOK_S if hurried else LOOK_S)

    def _look(self) -> Code:
        child, at_s = self.child, self.world.s
        worker = child.proc.id if child is not None else None
        soon_s = self.sim.ring_after_max_s + 10.0
        seen: dict[str, Any] = yield Call(
            self.sim.postgres, lambda: self.sim.store.suspects(worker, soon_s), 2.0
        )
        if child is not None and not child.proc.alive:
            self.child, self.ended_s = None, self.world.s
        elif child is None:
            if seen["unserved"] and at_s >= self.ended_s:
                self._start()
        elif seen["waiting"] or seen["holds"]:
            self.busy_s = at_s
        elif at_s - self.busy_s >= LINGER_S and not child.stopping:
            child.stop(1.0)

    def _start(self) -> None:
        self._n += 1
        self.busy_s = self.world.s
        self.sim.count("quarantines")
        self.child = self.sim.add_worker(f"q{self._n}", 1, (quarantine_of(QUEUE),))
