"""Virtual time, processes that can die or freeze at every await point, and a network that loses.

A process' code is a generator. What it yields is what it would await: a number of seconds, a `Nap`
that can be cut short, or a `Call` to a server. A call is two events, the server's and the reply's,
so that a process may die, freeze or be cut off before, between and after them, and a statement may
run although nobody waits for it any more. Everything random comes from one seeded generator.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from random import Random
from typing import Any, Final
from uuid import UUID, SafeUUID

from harness_common.core.errors import HarnessError

EPOCH: Final = datetime(2025, 1, 1, tzinfo=UTC)
US: Final = 1_000_000


class Id(UUID):
    """A UUID that is hashed by identity: the tables of the simulator look them up all the time, and
    hand round the same object.
    """

    __slots__ = ()
    __hash__ = object.__hash__

    def __init__(self, value: int) -> None:
        object.__setattr__(self, "int", value)
        object.__setattr__(self, "is_safe", SafeUUID.unknown)

    def __eq__(self, other: object) -> bool:
        return self is other or UUID.__eq__(self, other)


class Violation(Exception):
    """An invariant does not hold; ends the seed."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text


class Interrupted(Exception):
    """Thrown into a step where a cancel, a stop or its timeout interrupts it. `why` tells which."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class RedisGone(Exception):
    """Redis gave no answer."""


Code = Generator[Any, Any, Any]


@dataclass(slots=True)
class Call:
    """Ask a server; `work` runs there in one instant: transactions are serialised."""

    server: Server
    work: Callable[[], Any]
    timeout_s: float


@dataclass(slots=True)
class Nap:
    """Sleep until a time or until somebody wakes the task."""

    s: float


@dataclass(slots=True, eq=False)
class Server:
    """Postgres or Redis as its clients meet it."""

    name: str
    gone: Callable[[], Exception]
    down_until: int = 0
    down_from: int = -(10**12)
    epoch: int = 0
    """Counts crashes: a reply under way in a crash may be lost."""

    def go_down(self, now: int, s: float) -> None:
        """Be unreachable for a while; what was said before stands if it is longer."""
        if self.down_until < now:
            self.down_from = now
        self.down_until = max(self.down_until, now + int(s * US))


@dataclass(slots=True, eq=False)
class Process:
    """One incarnation of a process."""

    name: str
    id: UUID
    alive: bool = True
    frozen_until: int = 0
    cut: dict[str, int] = field(default_factory=dict)
    """Until when the way to a server is a black hole."""
    last_cut: dict[str, int] = field(default_factory=dict)
    thawed_at: int = -(10**12)
    trap: Callable[[], None] | None = None
    """What strikes when the process has passed `trap_in` more await points."""
    trap_in: int = 0


@dataclass(slots=True, eq=False)
class Task:
    """Code that runs in a process. `wait` numbers what it waits for: an old answer is ignored."""

    id: int
    proc: Process
    code: Code | None = None
    wait: int = 0
    napping: bool = False
    done: bool = False


@dataclass(slots=True)
class Weather:
    """How likely each call is disturbed; zero once the faults have stopped."""

    lose_request: float = 0.0
    lose_reply: float = 0.0
    late: float = 0.0
    total: float = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.lose_request + self.lose_reply + self.late


class World:
    """The clock, the events to come and the dice."""

    def __init__(self, seed: int, *, keep_trace: int = 0) -> None:
        self.rng = Random(seed)
        self.random = self.rng.random
        self.now = 0
        self.heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self.n = 0
        self.events = 0
        self.tasks = 0
        self.flying = 0
        """Requests that a server has not served yet."""
        self.caller: Task | None = None
        self.weather = Weather()
        self.faults: Counter[str] = Counter()
        self.trace: deque[str] | None = deque(maxlen=keep_trace) if keep_trace else None
        self.ended = False
        self._time, self._time_at = EPOCH, 0

    def at(self, s: float, fn: Callable[..., None], *args: Any) -> None:
        """Let `fn` happen in `s` seconds; what is due at the same time happens in order."""
        self.n += 1
        heappush(self.heap, (self.now + int(s * US), self.n, fn, args))

    def run(self, until_s: float) -> None:
        """Let time pass until `ended` is set or nothing happens before `until_s`."""
        end, heap = int(until_s * US), self.heap
        while heap and not self.ended:
            when, _, fn, args = heappop(heap)
            if when > end:
                break
            self.now = when
            self.events += 1
            fn(*args)

    @property
    def s(self) -> float:
        return self.now / US

    def time(self) -> datetime:
        """Return Postgres time."""
        if self._time_at != self.now:
            self._time_at, self._time = self.now, EPOCH + timedelta(microseconds=self.now)
        return self._time

    def uuid(self) -> UUID:
        return Id(self.rng.getrandbits(128))

    def log(self, *parts: object) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now / US:10.6f}  " + " ".join(map(str, parts)))

    # Tasks

    def spawn(self, proc: Process, code: Callable[..., Code], *args: Any) -> Task:
        """Start code in a process; its first argument is its task."""
        self.tasks += 1
        task = Task(self.tasks, proc)
        task.code = code(task, *args)
        self.at(0.0, self.resume, task, 0, None, None)
        return task

    def interrupt(self, task: Task, why: str) -> None:
        """Throw `Interrupted` where the task waits; the answer it waited for is ignored."""
        task.wait += 1
        self.at(0.0, self.resume, task, task.wait, None, Interrupted(why))

    def wake(self, task: Task, s: float = 0.0) -> None:
        """Cut a nap short."""
        if task.napping:
            task.napping = False
            task.wait += 1
            self.at(s, self.resume, task, task.wait, None, None)

    def resume(self, task: Task, wait: int, value: Any, error: Exception | None) -> None:
        proc = task.proc
        if wait != task.wait or task.done:
            return
        if proc.trap_in:
            self._spring(proc)
        if not proc.alive:
            return
        if proc.frozen_until > self.now:
            self.n += 1
            heappush(
                self.heap, (proc.frozen_until, self.n, self.resume, (task, wait, value, error))
            )
            return
        task.napping = False
        assert task.code is not None
        try:
            op = task.code.throw(error) if error is not None else task.code.send(value)
        except StopIteration:
            task.done = True
            return
        task.wait += 1
        if type(op) is Call:
            self._ask(task, op)
        elif type(op) is Nap:
            task.napping = True
            self.at(op.s, self.resume, task, task.wait, None, None)
        else:
            self.n += 1
            heappush(
                self.heap,
                (self.now + int(op * US), self.n, self.resume, (task, task.wait, None, None)),
            )

    def _spring(self, proc: Process) -> None:
        """Count an await point down; strike at the last."""
        proc.trap_in -= 1
        if proc.alive and not proc.trap_in and proc.trap is not None:
            proc.trap()

    # The network

    def _ask(self, task: Task, call: Call) -> None:
        server, weather, proc = call.server, self.weather, task.proc
        lag, lose_reply = 200 + int(2000 * self.random()), False
        if proc.cut and proc.cut.get(server.name, 0) > self.now:
            self.at(call.timeout_s, self.resume, task, task.wait, None, server.gone())
            return
        if weather.total and (dice := self.random()) < weather.total:
            if dice < weather.lose_request:
                self.faults[f"{server.name} request lost"] += 1
                self.log("FAULT", server.name, "loses a request of", proc.name)
                self.at(call.timeout_s, self.resume, task, task.wait, None, server.gone())
                return
            lose_reply = dice < weather.lose_request + weather.lose_reply
            if not lose_reply:
                self.faults[f"{server.name} request late"] += 1
                lag += int(call.timeout_s * 2 * self.random() ** 2 * US)
                self.log("FAULT", server.name, f"is {lag / US:.3f} s late for", proc.name)
                self.at(call.timeout_s, self.resume, task, task.wait, None, server.gone())
        self.flying += 1
        self.n += 1
        heappush(
            self.heap, (self.now + lag, self.n, self._serve, (task, task.wait, call, lose_reply))
        )

    def _serve(self, task: Task, wait: int, call: Call, lose_reply: bool) -> None:
        server, cut = call.server, task.proc.cut
        self.flying -= 1
        if server.down_until > self.now:
            self.at(0.02, self.resume, task, wait, None, server.gone())
            return
        self.caller = task
        value: Any = None
        error: Exception | None = None
        try:
            value = call.work()
        except HarnessError as raised:
            error = raised
        self.caller = None
        if lose_reply or (cut and cut.get(server.name, 0) > self.now):
            if lose_reply:
                self.faults[f"{server.name} reply lost"] += 1
                self.log("FAULT", server.name, "loses a reply to", task.proc.name)
            self.at(call.timeout_s, self.resume, task, wait, None, server.gone())
            return
        self.n += 1
        when = self.now + 200 + int(2000 * self.random())
        reply = (task, wait, server, server.epoch, value, error)
        heappush(self.heap, (when, self.n, self._reply, reply))

    def _reply(
        self, task: Task, wait: int, server: Server, epoch: int, value: Any, error: Exception | None
    ) -> None:
        if server.epoch != epoch and self.rng.random() < 0.5:
            error = server.gone()
        self.resume(task, wait, value, error)
