"""`python -m harness_worker`: a supervisor with N worker processes.

It starts each as `harness_worker.child` under a fresh incarnation id, reports a death to Postgres
at once (so that the reaper need not wait for a lease), restarts with backoff, and passes SIGTERM
on: children drain, hand over and leave.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from uuid import UUID, uuid4

import psycopg
import structlog
from redis import Redis

from harness_common.coord.channel import nudge_channel
from harness_common.coord.redis import RedisFault
from harness_common.embedded.process import spawn
from harness_common.settings import Settings, settings
from harness_common.store.db import sql
from harness_common.telemetry.logs import configure_logging
from harness_worker.tools.registry import ToolRegistry

log = structlog.get_logger()

_QUICK_S = 5.0
_LONGEST_PAUSE_S = 30.0
_KILL_AFTER_S = 90.0


@dataclass(slots=True)
class Child:
    """One worker process and how often it ended soon after its start."""

    number: int
    incarnation: UUID
    process: subprocess.Popen[bytes]
    started: float
    quick_ends: int = 0
    restart_at: float | None = None


class Supervisor:
    """Keeps N worker processes alive until told to stop."""

    def __init__(self, config: Settings, processes: int, environment: dict[str, str]) -> None:
        self._config = config
        self._count = processes
        self._environment = environment
        self._children: list[Child] = []
        self._stop = threading.Event()

    def stop(self, *_: object) -> None:
        """Ask all to end (a signal handler)."""
        self._stop.set()

    def run(self) -> int:
        """Run until `stop`; returns the exit code."""
        self._children = [self._start(n, 0) for n in range(1, self._count + 1)]
        while not self._stop.wait(0.05):
            for child in self._children:
                self._look_after(child)
        return self._end()

    def _start(self, number: int, quick_ends: int) -> Child:
        incarnation = uuid4()
        name = f"steps-{number}-{incarnation.hex[:6]}"
        process = spawn(
            [sys.executable, "-m", "harness_worker.child"],
            # A drain that lost its supervisor has nobody to report to: recovery does the rest.
            death_signal=signal.SIGKILL,
            env={
                **os.environ,
                **self._environment,
                "HARNESS_INCARNATION": incarnation.hex,
                "HARNESS_WORKER_NAME": name,
            },
        )
        log.info("worker.spawned", number=number, pid=process.pid, name=name)
        return Child(number, incarnation, process, time.monotonic(), quick_ends)

    def _look_after(self, child: Child) -> None:
        now = time.monotonic()
        if child.restart_at is not None:
            if now >= child.restart_at:
                fresh = self._start(child.number, child.quick_ends)
                self._children[child.number - 1] = fresh
            return
        code = child.process.poll()
        if code is None:
            return
        quick = now - child.started < _QUICK_S
        child.quick_ends = child.quick_ends + 1 if quick else 0
        pause_s = min(_LONGEST_PAUSE_S, 0.5 * 2**child.quick_ends) if quick else 0.0
        child.restart_at = now + pause_s
        log.warning(
            "worker.ended",
            number=child.number,
            pid=child.process.pid,
            code=code,
            again_in_s=pause_s,
        )
        threading.Thread(target=self._report_death, args=(child, code), daemon=True).start()

    def _report_death(self, child: Child, code: int) -> None:
        """Tell Postgres which incarnation died. Best effort: a silent heartbeat says the same a
        lease later.
        """
        why = f"killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        params = {
            "worker": child.incarnation,
            "why": why,
            "only_if_silent": False,
            "looked_at": None,
            "silent_s": 0.0,
            "term": None,
        }
        try:
            with psycopg.connect(
                self._config.require_database_url(), connect_timeout=5, autocommit=True
            ) as conn:
                conn.execute(sql("worker_died"), params)
            with Redis.from_url(
                self._config.require_redis_url(), socket_timeout=1, socket_connect_timeout=1
            ) as redis:
                redis.publish(nudge_channel(self._config.redis.prefix), b"{}")
        except (psycopg.Error, *RedisFault) as error:
            log.warning("worker.death_not_reported", error=str(error))

    def _end(self) -> int:
        alive = [c.process for c in self._children if c.process.poll() is None]
        log.info("supervisor.stopping", children=len(alive))
        for process in alive:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + self._config.worker.grace_s + _KILL_AFTER_S
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
        ToolRegistry.from_settings(config)
    except Exception as error:  # noqa: BLE001 - user modules may raise anything at import
        log.error(
            "tools.not_loaded", tools=config.worker.tools, error=f"{type(error).__name__}: {error}"
        )
        return 2
    supervisor = Supervisor(config, args.processes or config.worker.processes, environment)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    return supervisor.run()


def _json_list(values: list[str]) -> str:
    return "[" + ",".join(f'"{v.strip()}"' for v in values) + "]"


if __name__ == "__main__":
    sys.exit(main())
