"""A supervisor of a few processes: starts them, keeps them up, shows one log, stops them in order.

`harness dev` runs the whole platform under it; any other group of processes can use it too.
Signals are the caller's: it turns the first into `KeyboardInterrupt` and a second into `hurry()`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import IO

from harness_api.cli.process_log import ProcessLog
from harness_common.embedded.process import spawn

_LONGEST_LINE_BYTES = 64 * 1024
_TICK_S = 0.5
_OWN_NAME = "dev"


@dataclass(frozen=True, slots=True)
class Restart:
    """When and how often a process that ended by itself is started again."""

    first_s: float = 0.2
    max_s: float = 10.0
    quick_s: float = 5.0
    """A process that ended sooner than this after its start ended *at once*."""
    give_up_after: int = 5
    """So many ends at once in a row, and it is not started again."""

    def delay_s(self, quick_ends: int) -> float:
        """Return how long to wait before the next start."""
        return min(self.max_s, self.first_s * 2.0 ** max(0, quick_ends - 1))


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to keep running."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the supervisor."""
    restart: Restart = Restart()
    stop_grace_s: float = 5.0
    """How long SIGTERM may take before SIGKILL."""
    required: bool = True
    """Whether the group stops when this one gives up."""


class Outcome(Enum):
    """Why `Supervisor.run` returned."""

    REACHED = "reached"
    GAVE_UP = "gave_up"
    TIMED_OUT = "timed_out"


class _Child:
    """One process of the group over all its starts."""

    def __init__(self, spec: ProcessSpec, log: ProcessLog) -> None:
        self.spec = spec
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None
        self.last_lines: deque[str] = deque(maxlen=15)
        self.ended = threading.Event()
        self.started_at = 0.0
        self.restart_at: float | None = None
        self.quick_ends = 0
        self.gave_up = False

    def start(self, pass_fds: Sequence[int], on_end: Callable[[_Child], None]) -> None:
        self.restart_at = None
        self.started_at = time.monotonic()
        self.ended = threading.Event()
        self.last_lines.clear()
        self.process = spawn(
            self.spec.argv,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.spec.env},
            stdout=subprocess.PIPE,
            pass_fds=pass_fds,
        )
        assert self.process.stdout is not None
        pump = self._thread(self._pump, self.process.stdout)
        self._thread(self._watch, self.process, self.ended, pump, on_end)

    def _thread(self, target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name=self.spec.name, daemon=True)
        thread.start()
        return thread

    def _pump(self, output: IO[bytes]) -> None:
        with output:
            for raw in iter(lambda: output.readline(_LONGEST_LINE_BYTES), b""):
                line = raw.decode(errors="replace").rstrip()
                self.last_lines.append(line)
                self.log.write(self.spec.name, line)

    def _watch(
        self,
        process: subprocess.Popen[bytes],
        ended: threading.Event,
        pump: threading.Thread,
        on_end: Callable[[_Child], None],
    ) -> None:
        process.wait()
        pump.join(0.5)  # its last words; a grandchild may hold the pipe open for ever
        ended.set()
        on_end(self)

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.ended.is_set()

    def how_it_ended(self) -> str:
        code = self.process.returncode if self.process else 0
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with code {code}"


class Supervisor:
    """Keep the processes of `specs` running until told to stop.

    `pass_fds` are handed to every child (a held `FolderLock`); `on_change` hears the new pids by
    name after each start and end; `on_tick` runs twice a second in the caller's thread.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        log: ProcessLog,
        *,
        pass_fds: Sequence[int] = (),
        on_change: Callable[[Mapping[str, int]], None] = lambda _: None,
        on_tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._children = [_Child(spec, log) for spec in specs]
        self._log = log
        self._pass_fds = pass_fds
        self._on_change = on_change
        self._on_tick = on_tick
        self._ends: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._hurry = threading.Event()
        self.is_stopping = False

    @property
    def pids(self) -> dict[str, int]:
        """The running processes by name."""
        return {
            child.spec.name: child.process.pid
            for child in self._children
            if child.process and child.is_running
        }

    def start(self) -> None:
        """Start every process, in the order of the specs."""
        for child in self._children:
            self._start(child)

    def run(
        self, until: Callable[[], bool] = lambda: False, timeout_s: float = float("inf")
    ) -> Outcome:
        """Keep the processes up until `until` is true, time is over or a required one gives up."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                self._handle_end(self._ends.get(timeout=self._next_wait_s()))
            except queue.Empty:
                self._on_tick()
            now = time.monotonic()
            for child in self._children:
                if child.restart_at is not None and child.restart_at <= now:
                    self._start(child)
            if any(child.gave_up and child.spec.required for child in self._children):
                return Outcome.GAVE_UP
            if until():
                return Outcome.REACHED
        return Outcome.TIMED_OUT

    def stop(self) -> None:
        """Stop all in reverse order: SIGTERM, the grace of each, SIGKILL."""
        self.is_stopping = True
        for child in reversed(self._children):
            child.restart_at = None
            if child.is_running:
                self._stop(child)
        self._on_change(self.pids)

    def hurry(self) -> None:
        """Cut every grace short. May be called from a signal handler during `stop`."""
        self._hurry.set()

    def _next_wait_s(self) -> float:
        due = [child.restart_at for child in self._children if child.restart_at is not None]
        return max(0.0, min([_TICK_S, *(at - time.monotonic() for at in due)]))

    def _start(self, child: _Child) -> None:
        try:
            child.start(self._pass_fds, self._ends.put)
        except OSError as error:
            child.gave_up = True
            self._say(f"{child.spec.name} cannot be started: {error}")
            return
        self._on_change(self.pids)

    def _handle_end(self, child: _Child) -> None:
        self._on_change(self.pids)
        lived_s = time.monotonic() - child.started_at
        child.quick_ends = child.quick_ends + 1 if lived_s < child.spec.restart.quick_s else 0
        what = f"{child.spec.name} {child.how_it_ended()} after {lived_s:.1f} s"
        if child.quick_ends >= child.spec.restart.give_up_after:
            child.gave_up = True
            self._say(f"{what}, {child.quick_ends} times in a row: giving up. Its last lines:")
            for line in child.last_lines or ["(it wrote nothing)"]:
                self._say(f"    {line}")
            return
        delay_s = child.spec.restart.delay_s(child.quick_ends)
        child.restart_at = time.monotonic() + delay_s
        self._say(f"{what}; starting it again in {delay_s:.1f} s")

    def _stop(self, child: _Child) -> None:
        assert child.process is not None
        began = time.monotonic()
        child.process.terminate()
        while not child.ended.wait(0.05):
            late = time.monotonic() - began > child.spec.stop_grace_s
            if late or self._hurry.is_set():
                # The group, since it is still unreaped: helpers that it forked go with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal.SIGKILL)
                child.ended.wait(2)
                break
        took_s = time.monotonic() - began
        self._say(f"{child.spec.name} {child.how_it_ended()}, {took_s:.1f} s after SIGTERM")

    def _say(self, text: str) -> None:
        self._log.write(_OWN_NAME, text)


def run_to_end(
    spec: ProcessSpec, log: ProcessLog, *, pass_fds: Sequence[int] = ()
) -> tuple[int, list[str]]:
    """Run one process to its end; return its exit code and last lines. An interrupt stops it."""
    child = _Child(spec, log)
    child.start(pass_fds, lambda _: None)
    assert child.process is not None
    try:
        child.ended.wait()
    except BaseException:
        child.process.terminate()
        if not child.ended.wait(spec.stop_grace_s):
            child.process.kill()
        raise
    return child.process.returncode, list(child.last_lines)
