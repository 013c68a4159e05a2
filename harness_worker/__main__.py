"""`python -m harness_worker`: a supervisor with N worker processes.

It starts each as `harness_worker.child` under a fresh incarnation id, reports a death to Postgres
at once (so that the reaper need not wait for a lease), restarts with backoff, and passes SIGTERM
on: children drain, hand over and leave. For runs whose processes died it starts one more, the
quarantine.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

import structlog

from harness_common.settings import Settings, settings
from harness_common.telemetry.alive import Alive
from harness_common.telemetry.logs import configure_logging
from harness_worker.egress.client import Egress
from harness_worker.quarantine import Quarantine
from harness_worker.telemetry.multiprocess import SupervisedMetrics
from harness_worker.tools.registry import ToolRegistry
from harness_worker.worker_process import (
    KILL_AFTER_S,
    WorkerProcess,
    report_death,
    start_process,
)

log = structlog.get_logger()

_LONGEST_PAUSE_S = 30.0


class Supervisor:
    """Keeps N worker processes alive until told to stop, and a quarantine while it is needed."""

    def __init__(self, config: Settings, processes: int, environment: dict[str, str]) -> None:
        self._config = config
        self._count = processes
        self._environment = environment
        self._children: list[WorkerProcess] = []
        self._quarantine = Quarantine(config, environment)
        self._stop = threading.Event()

    def stop(self, *_: object) -> None:
        """Ask all to end (a signal handler)."""
        self._stop.set()

    def run(self) -> int:
        """Run until `stop`; returns the exit code."""
        self._children = [self._start(n, 0) for n in range(1, self._count + 1)]
        alive = Alive("supervisor")
        while not self._stop.wait(0.05):
            alive.beat()
            for place, child in enumerate(self._children):
                self._look_after(place, child)
            self._quarantine.look()
        return self._end()

    def _start(self, number: int, quick_ends: int) -> WorkerProcess:
        # A drain that lost its supervisor has nobody to report to: recovery does the rest.
        return start_process(f"steps-{number}", self._environment, quick_ends=quick_ends)

    def _look_after(self, place: int, child: WorkerProcess) -> None:
        if child.restart_at is not None:
            if time.monotonic() >= child.restart_at:
                self._children[place] = self._start(place + 1, child.quick_ends)
            return
        code = child.ended(_LONGEST_PAUSE_S)
        if code is not None:
            report_death(self._config, child.incarnation, code)
            self._quarantine.watch.hurry()

    def _end(self) -> int:
        quarantined = self._quarantine.process
        children = self._children + ([quarantined] if quarantined else [])
        alive = [c.process for c in children if c.process.poll() is None]
        log.info("supervisor.stopping", children=len(alive))
        for process in alive:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._config.worker.grace_s + KILL_AFTER_S
        code = 0
        for process in alive:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("worker.killed", pid=process.pid)
                process.kill()
                code = 1
        return code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m harness_worker", description="Run worker processes until SIGTERM."
    )
    parser.add_argument("--processes", type=int, help="worker processes (default: settings)")
    parser.add_argument("--concurrency", type=int, help="steps held at once by each process")
    parser.add_argument("-Q", "--queues", help="comma-separated queue names, such as steps.default")
    parser.add_argument("--tools", action="append", help="a module with user tools; repeatable")
    return parser.parse_args()


def main() -> int:
    """Run the supervisor."""
    args = _arguments()
    environment: dict[str, str] = {}
    if args.concurrency is not None:
        environment["HARNESS_WORKER__CONCURRENCY"] = str(args.concurrency)
    if args.queues:
        environment["HARNESS_WORKER__QUEUES"] = _json_list(args.queues.split(","))
    if args.tools:
        environment["HARNESS_WORKER__TOOLS"] = _json_list(args.tools)
    os.environ.update(environment)
    config = settings()
    configure_logging(config.log)
    try:
        ToolRegistry.from_settings(config, Egress(config))
    except Exception as error:  # noqa: BLE001 - user modules may raise anything at import
        log.error(
            "tools.not_loaded", tools=config.worker.tools, error=f"{type(error).__name__}: {error}"
        )
        return 2
    with SupervisedMetrics(config.telemetry) as metrics:
        environment |= metrics.environment
        supervisor = Supervisor(config, args.processes or config.worker.processes, environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, supervisor.stop)
        return supervisor.run()


def _json_list(values: list[str]) -> str:
    return "[" + ",".join(f'"{v.strip()}"' for v in values) + "]"


if __name__ == "__main__":
    sys.exit(main())
