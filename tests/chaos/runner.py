"""Leads through one go: start, load with faults, heal, drain, audit."""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psutil
import psycopg

from tests.chaos.auditor import Audit, Expected, audit, unfinished
from tests.chaos.doorbells import Doorbells
from tests.chaos.faults import FEWEST, Fault, World, at_work, usable
from tests.chaos.recovery import Recovery
from tests.chaos.report import INFORMATIVE, Outcome, build, events_of, keep_logs, reasons
from tests.chaos.stack import ChaosStack
from tests.chaos.workload import Workload

_FAULT_THREADS = 8
_STILL_S = 75.0
"""Longer than the longest pause between two rings (`scheduler.ring_after_max_s`)."""
_LONGEST_DRAIN_S = 300.0
_GROWN_S = 5.5
_STEP_S = 8.0
"""Longer than any step of the workload."""
"""A supervisor starts a process that ended sooner with a pause."""
_SHOWN_RUNS = 5


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: runs and faults, within a time under fault."""

    runs: int
    faults: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Options:
    """How it is done. `kills`: so many kills of worker processes and nothing else."""

    seed: int
    kills: int = 0
    freezes: int = 0
    """After the kills: so many worker processes that stand still beyond their lease."""
    disk: bool = False
    keep: bool = False
    p99_limit_s: float | None = None


FULL = Size(2_000, 320, 430.0)
SMALL = Size(300, 40, 60.0)


def say(text: str) -> None:
    """Tell whoever watches; the report alone goes to standard output."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def plan(kinds: list[Fault], count: int, chance: random.Random) -> deque[Fault]:
    """Choose the faults: every kind at least once, then by weight, in a random order."""
    chosen = kinds[:count]
    while len(chosen) < count:
        chosen += chance.choices(kinds, [k.weight for k in kinds])
    chance.shuffle(chosen)
    return deque(chosen)


class Attack:
    """Does the planned faults at random times, several at once, never two on one target."""

    def __init__(self, world: World, outcome: Outcome, chance: random.Random) -> None:
        self._world = world
        self._outcome = outcome
        self._chance = chance
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(_FAULT_THREADS, thread_name_prefix="fault")
        self._left: deque[Fault] = deque()

    def run(self, faults: deque[Fault], seconds: float) -> None:
        """Spread the faults over `seconds` and wait for the last; what is left then is dropped. One
        that was missed takes no time from those that are to come.
        """
        self._left = faults
        began, count = time.monotonic(), len(faults)
        give_up = began + seconds * 1.1
        n = 0
        while sum(self._outcome.faults.values()) < count and time.monotonic() < give_up:
            tried = n - sum(self._outcome.missed.values())
            due = began + seconds * (tried + self._chance.random()) / count
            time.sleep(min(max(0.05, due - time.monotonic()), 1.0))
            if time.monotonic() >= due and (fault := self._take()) is not None:
                n += 1
                self._pool.submit(self._do, fault, random.Random(self._chance.getrandbits(64)))
        self._pool.shutdown(wait=True)

    def _take(self) -> Fault | None:
        """Take the first planned fault whose target is free."""
        with self._lock:
            for fault in self._left:
                if fault.target not in self._busy:
                    self._left.remove(fault)
                    self._busy.add(fault.target)
                    return fault
        return None

    def _do(self, fault: Fault, chance: random.Random) -> None:
        began = time.monotonic()
        try:
            happened = fault.act(self._world, chance)
        except Exception as error:  # noqa: BLE001 - a broken fault is a finding, not the end
            self._outcome.errors.append(f"{fault.name}: {type(error).__name__}: {error}"[:500])
            happened = False
        with self._lock:
            self._busy.discard(fault.target)
            (self._outcome.faults if happened else self._outcome.missed)[fault.name] += 1
            if not happened:
                self._left.append(fault)
        say(f"{fault.name}{'' if happened else ' (missed)'} {time.monotonic() - began:.1f} s")


def kill_only(world: World, outcome: Outcome, count: int, chance: random.Random) -> None:
    """Kill one worker process after the other, each when the runs of the last have done the step
    they were at: independent deaths. (A run that dies twice at one step waits for the quarantine.)
    """
    for n in range(count):
        _until_recovered(world.stack)
        process, who = chance.choice(_holders(world.stack))
        process.send_signal(signal.SIGKILL)
        future = world.recovery.watch("killed", who, time.monotonic())
        outcome.faults["kill_worker_process"] += 1
        took = future.result() if future else 0.0
        say(f"kill {n + 1} of {count}: recovered in {took:.2f} s")
        time.sleep(chance.uniform(0.2, 0.6))


def freeze_only(world: World, outcome: Outcome, count: int, chance: random.Random) -> None:
    """Stop one worker process after the other until others have its runs, then let it go on."""
    for n in range(count):
        process, who = chance.choice(_holders(world.stack))
        process.suspend()
        try:
            future = world.recovery.watch("frozen", who, time.monotonic())
            took = future.result() if future else 0.0
        finally:
            process.resume()
        outcome.faults["freeze_worker"] += 1
        say(f"freeze {n + 1} of {count}: recovered in {took:.2f} s")
        time.sleep(chance.uniform(1.0, 2.0))


def _until_recovered(stack: ChaosStack) -> None:
    """Wait, within reason, until no run is still at a step at which its process died."""
    until = time.monotonic() + _STEP_S
    died = "SELECT EXISTS (SELECT 1 FROM runs WHERE deaths > 0 AND status = 'running') AS some"
    while stack.ask(died)[0]["some"] and time.monotonic() < until:
        time.sleep(0.05)


def _holders(stack: ChaosStack) -> list[tuple[psutil.Process, UUID]]:
    """Wait for a worker process that holds runs and will be started again without a pause, while
    there is another to take them over: what is measured is a death, not a start.
    """
    while True:
        held = "SELECT DISTINCT claimed_by FROM runs WHERE claim_id IS NOT NULL"
        owners = {row["claimed_by"] for row in stack.ask(held)}
        working = at_work(stack)
        found = [
            (process, who)
            for process, who in working
            if who in owners and time.time() - process.create_time() > _GROWN_S
        ]
        if found and len(working) >= FEWEST:
            return found
        time.sleep(0.05)


def drain(stack: ChaosStack) -> None:
    """Wait until all runs are over or parked, or until nothing has moved for a while: a slow
    machine is no stuck run.
    """
    give_up = time.monotonic() + _LONGEST_DRAIN_S
    moved_at, seen = time.monotonic(), (0, 0)
    while time.monotonic() < min(give_up, moved_at + _STILL_S):
        time.sleep(0.5)
        try:
            left = unfinished(stack.query)
            (row,) = stack.query("SELECT sum(version)::int AS moves FROM runs")
        except psycopg.Error:
            continue
        if not left:
            time.sleep(1.0)
            return
        now = (len(left), row["moves"])
        if now != seen:
            moved_at, seen = time.monotonic(), now


class Chaos:
    """One go: `run` returns the report."""

    def __init__(self, size: Size, options: Options) -> None:
        self._size = size
        self._options = options
        self._chance = random.Random(options.seed)
        mode = "kills only" if options.kills else "chaos"
        self._outcome = Outcome(options.seed, mode, p99_limit_s=options.p99_limit_s)

    def run(self) -> dict[str, Any]:
        """Do it all."""
        began = time.monotonic()
        stack = ChaosStack(
            small_disk=self._options.disk and not self._options.kills,
            plain=bool(self._options.kills),
        )
        with stack:
            say(f"up after {time.monotonic() - began:.1f} s in {stack.folder}")
            world = World(stack, Recovery(stack), Doorbells(stack))
            workload = Workload(stack, self._size.runs, self._size.seconds, self._options.seed)
            workload.put_agents()
            self._attack(world, workload)
            world.doorbells.close()
            world.recovery.finish()
            say("audit")
            expected = {
                name: Expected(run.agent, run.cancelled)
                for name, run in workload.journal.runs.items()
            }
            with stack.snapshot() as query:
                found = audit(query, expected, stack.effects, workload.journal.unanswered)
            self._outcome.total_s = time.monotonic() - began
            killed_s = world.recovery.samples["killed"].seconds
            red = reasons(found, workload.journal, self._outcome, killed_s)
            if self._options.keep or red:
                self._keep(stack, found)
            return build(self._outcome, found, workload.journal, world.recovery.samples)

    def _attack(self, world: World, workload: Workload) -> None:
        outcome, began = self._outcome, time.monotonic()
        workload.start()
        if self._options.kills:
            time.sleep(4.0)
            kill_only(world, outcome, self._options.kills, self._chance)
            freeze_only(world, outcome, self._options.freezes, self._chance)
            workload.stop()
        else:
            kinds, outcome.skipped = usable(world.stack)
            for name, why in outcome.skipped.items():
                say(f"{name} is left out: {why}")
            faults = plan(kinds, self._size.faults, self._chance)
            Attack(world, outcome, self._chance).run(faults, self._size.seconds)
        workload.finish()
        outcome.window_s = time.monotonic() - began
        say("no more faults; waiting for the runs to end")
        drain(world.stack)
        outcome.drain_s = time.monotonic() - began - outcome.window_s

    def _keep(self, stack: ChaosStack, found: Audit) -> None:
        named = {
            kind: events_of(stack.query, [run for run, _ in runs[:_SHOWN_RUNS]])
            for kind, runs in found.wrong.items()
        }
        extra = {"wrong": found.wrong, "events": named}
        kept = keep_logs(stack.folder, self._options.seed, extra)
        self._outcome.logs = str(kept)
        for line in _tell(found, named):
            say(line)
        say(f"logs are kept in {kept}")


def _tell(found: Audit, named: dict[str, dict[str, list[str]]]) -> Iterator[str]:
    for kind, runs in found.wrong.items():
        if kind in INFORMATIVE:
            continue
        yield f"== {kind}: {len(runs)}"
        for run, seen in runs[:_SHOWN_RUNS]:
            yield f"{run}: {seen}"
            yield from named[kind].get(run, [])
